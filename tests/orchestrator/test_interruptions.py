"""TODO"""
def test_a_killed_learner_goes_on_from_its_checkpoint(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LONG)
    with subprocess.Popen(
        command(folder, "sweep.yaml"), cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        killed = []
        for wanted in (6, 24):  # batches of 60: twice, each time in the middle
            attempt = wait_for(lambda wanted=wanted: reached(folder, "long", wanted), process)
            pid = int(attempt.read_text().split()[1])
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert len(set(killed)) == 2
    (trial,) = trials(folder, "long")
    assert len(list(trial.glob("attempt-*"))) == 3
    recipe = recipes()["rainbow_digits"](tasks=4, train=150, validation=12, test=12)  # type: ignore[call-arg]
    bare = protocol.assemble(cached(recipe, [0, 1]), "foml", {"K": 3}, [0, 1])
    bare.advance(100)
    assert_same(curves_of(folder, "long")[trial.name], bare.curves)
    online = points(folder, "long", "online_error")
    online = online[online["seed"].notna()]
    for row, seed in enumerate((0, 1)):
        own = online[online["seed"] == seed].sort_values("step")
        assert own["step"].tolist() == list(range(60))
        assert np.array_equal(own["value"].to_numpy(), bare.curves.by_batch["online_error"][row])
    assert set(statuses(folder)) == {"FINISHED"}


def test_ctrl_c_keeps_the_chunk_and_the_same_command_goes_on(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, LONG)
    with subprocess.Popen(
        command(folder, "sweep.yaml"), cwd=folder, stderr=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        wait_for(lambda: reached(folder, "long", 6), process)
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 130, errors
    assert "interrupted: go on with: python -m orchestrator.sweep --resume long" in out
    assert set(statuses(folder)) == {"KILLED"}
    (trial,) = trials(folder, "long")
    half = chunks.newest(trial)
    assert half is not None
    assert 6 <= half.batches < 60
    again = run(folder, "--resume", "long")
    assert again.returncode == 0, again.stderr
    recipe = recipes()["rainbow_digits"](tasks=4, train=150, validation=12, test=12)  # type: ignore[call-arg]
    bare = protocol.assemble(cached(recipe, [0, 1]), "foml", {"K": 3}, [0, 1])
    bare.advance(100)
    assert_same(curves_of(folder, "long")[trial.name], bare.curves)
    online = points(folder, "long", "online_error")
    assert online[online["seed"] == 1]["step"].sort_values().tolist() == list(range(60))
    assert set(statuses(folder)) == {"FINISHED"}


