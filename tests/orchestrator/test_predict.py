"""Learners loaded from their runs predict image files as they predict arrays; each fault is one line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from mlflow import MlflowClient
from PIL import Image

import learners
from learners import checkpoint, registry
from learners.networks import build
from orchestrator import predict
from orchestrator.errors import OrchestratorError
from orchestrator.plan.plan import Trial
from orchestrator.storage import chunk_files
from orchestrator.tracking import checkpoints, reader
from tests.orchestrator import synthetic_sweep as synthetic


def learner_file(path, name="foml", seeds=(0, 1, 2), network="rainbow", shape=(3, 28, 28), classes=10):
    """Save an untrained learner."""
    setting = learners.Setting(build.build(network, shape, classes), list(seeds), 10, 9, classes)
    learner = registry.create(name, {}, setting)
    path.parent.mkdir(parents=True, exist_ok=True)
    checkpoint.save(path, name, learner, network, shape)
    return learner


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """The URI; the runs of FOML, of its seed 1, of the sweep and of an unfinished configuration; FOML's learner."""
    folder = tmp_path_factory.mktemp("runs")
    uri = synthetic.new_database(folder)
    complete, unfinished = (
        Trial(synthetic.configuration("foml", K=5), (0, 1, 2)),
        Trial(synthetic.configuration("online"), (0, 1)),
    )
    sweep = synthetic.make_sweep(folder / "results", "sweep", complete, unfinished)
    writer = synthetic.tracking.Writer(uri, "experiment", sweep.plan, sweep.root, {}, synthetic.START_MS)
    writer.start()
    sweep.write_chunk(complete)
    learner = learner_file(complete.folder(sweep.root) / chunk_files.LEARNER_FILE)
    writer.finished(complete.key)
    writer.results(unfinished.key, sweep.part(unfinished, 0, 20))
    assert writer.drain() == []
    writer.close("KILLED")
    client = MlflowClient(uri)
    mlflow_runs = client.search_runs([client.get_experiment_by_name("experiment").experiment_id])

    def one(**tags):
        (run,) = [
            run for run in mlflow_runs if all(run.data.tags.get(f"foml.{key}") == value for key, value in tags.items())
        ]
        return run.info.run_id

    return {
        "uri": uri,
        "foml": one(kind="configuration", learner="foml"),
        "seed": one(kind="seed", learner="foml", seed="1"),
        "sweep": one(kind="sweep"),
        "unfinished": one(kind="configuration", learner="online"),
        "learner": learner,
    }


@pytest.fixture
def images(tmp_path):
    """Four files of noise, and their pixels [4, C, H, W]."""
    pixels = np.random.default_rng(0).integers(0, 256, (4, 28, 28, 3), dtype=np.uint8)
    paths = [tmp_path / f"{index}.png" for index in range(4)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    return [str(path) for path in paths], pixels.transpose(0, 3, 1, 2)


def expected(learner, pixels):
    x = torch.from_numpy(pixels.copy()).float().div(255)
    return learner.predict(x.expand(len(learner.setting.seeds), *x.shape)).softmax(-1).numpy()


def test_files_are_predicted_as_arrays(runs, images):
    paths, pixels = images
    learner = predict.load(runs["foml"], runs["uri"])
    probabilities = learner(*paths, paths[0])
    assert probabilities.shape == (3, 5, 10) and learner.seeds == [0, 1, 2] and learner.image_shape == (3, 28, 28)
    np.testing.assert_allclose(probabilities[:, :4], expected(runs["learner"], pixels), atol=1e-6)
    np.testing.assert_allclose(probabilities[:, 4], probabilities[:, 0], atol=1e-6)
    np.testing.assert_allclose(probabilities.sum(-1), 1, atol=1e-5)


def test_a_seeds_run_has_that_seed_only(runs, images):
    paths, pixels = images
    learner = predict.load(runs["seed"], runs["uri"])
    assert learner.seeds == [1]
    np.testing.assert_allclose(learner(*paths), expected(runs["learner"], pixels)[[1]], atol=1e-6)


def test_the_command(runs, images, capsys):
    paths, pixels = images
    torch.set_num_threads(2)
    assert predict.main([runs["foml"], *paths, "--tracking-uri", runs["uri"]]) == 0
    assert torch.get_num_threads() == 1
    output = capsys.readouterr()
    assert output.err == ""
    for line, path, each in zip(
        output.out.splitlines(), paths, expected(runs["learner"], pixels).transpose(1, 0, 2), strict=True
    ):
        best = each.mean(axis=0).argmax()
        agreeing = (each.argmax(axis=1) == best).sum()
        assert line == f"{path}: {best} (probability {each.mean(axis=0)[best]:.3f}; {agreeing} of 3 seeds)"


def test_a_checkpoint_file_and_grey_images(tmp_path, capsys):
    learner = learner_file(tmp_path / "learner.pt", "online", (4,), shape=(1, 16, 20))
    colour = np.random.default_rng(1).integers(0, 256, (16, 20, 3), dtype=np.uint8)
    image = Image.fromarray(colour)
    image.save(tmp_path / "a.png")
    grey = np.asarray(image.convert("L"))[None, None]
    probabilities = predict.load(str(tmp_path / "learner.pt"))(tmp_path / "a.png")
    np.testing.assert_allclose(probabilities, expected(learner, grey), atol=1e-6)


def test_pairs_are_two_images_each(tmp_path, capsys):
    learner = learner_file(tmp_path / "learner.pt", "online", (0, 1), "siamese", (3, 32, 32), 2)
    pixels = np.random.default_rng(2).integers(0, 256, (4, 32, 32, 3), dtype=np.uint8)
    paths = [str(tmp_path / f"{index}.png") for index in range(4)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    x = torch.from_numpy(pixels.transpose(0, 3, 1, 2).copy()).float().div(255).unflatten(0, (2, 2))
    reference = learner.predict(x.expand(2, *x.shape)).softmax(-1).numpy()
    np.testing.assert_allclose(predict.load(str(tmp_path / "learner.pt"))(*paths), reference, atol=1e-6)
    assert predict.main([str(tmp_path / "learner.pt"), *paths]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and lines[0].startswith(f"{paths[0]} {paths[1]}: ")
    assert lines[0].split(": ")[1].split(" ")[0] == ("different", "same")[int(reference[:, 0].mean(0).argmax())]
    assert predict.main([str(tmp_path / "learner.pt"), *paths[:3]]) == 2
    assert capsys.readouterr().err == "IMAGES: must be an even number for a learner of pairs (got 3)\n"


def test_all_faults_are_reported_together(runs, images, tmp_path, capsys):
    paths, _ = images
    large, text = tmp_path / "large.png", tmp_path / "text.png"
    Image.new("RGB", (30, 28)).save(large)
    text.write_text("not an image")
    cut = tmp_path / "cut.png"
    cut.write_bytes(Path(paths[0]).read_bytes()[:200])
    none = tmp_path / "none.png"
    words = [str(large), paths[0], str(text), str(none), str(cut)]
    assert predict.main([runs["foml"], *words, "--tracking-uri", runs["uri"]]) == 2
    output = capsys.readouterr()
    assert output.out == ""
    lines = output.err.splitlines()
    assert lines[:2] == [
        f"{text}: must be an image, such as PNG or JPEG",
        f"{none}: must be a readable image (No such file or directory)",
    ]
    assert lines[2].startswith(f"{cut}: must be a readable image (")
    assert lines[3:] == [f"{large}: must be 28x28 pixels (got 30x28); resize it to 28x28"]
    with pytest.raises(OrchestratorError) as caught:
        predict.load(runs["foml"], runs["uri"])(*words)
    assert caught.value.faults == tuple(lines)
    assert predict.main(["0" * 32, str(none), "--tracking-uri", runs["uri"]]) == 2
    assert capsys.readouterr().err.count("\n") == 2, "both the run and the image are reported"


def test_images_are_read_as_those_of_an_image_folder(tmp_path, capsys):
    """16-bit pixels are rejected, not clipped to white; EXIF rotation is applied; a truncated file is rejected."""
    learner = learner_file(tmp_path / "learner.pt", "online", (4,), shape=(1, 16, 20))
    upright = np.random.default_rng(3).integers(0, 256, (16, 20), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = 6  # a quarter turn clockwise
    Image.fromarray(np.ascontiguousarray(np.rot90(upright))).save(tmp_path / "turned.png", exif=exif)
    probabilities = predict.load(str(tmp_path / "learner.pt"))(tmp_path / "turned.png")
    np.testing.assert_allclose(probabilities, expected(learner, upright[None, None]), atol=1e-6)
    deep, cut = tmp_path / "deep.png", tmp_path / "cut.png"
    Image.fromarray(np.full((16, 20), 40_000, dtype=np.uint16)).save(deep)
    cut.write_bytes((tmp_path / "turned.png").read_bytes()[:-12])
    assert predict.main([str(tmp_path / "learner.pt"), str(deep), str(cut)]) == 2
    rule = "must be a readable image"
    assert capsys.readouterr().err.splitlines() == [
        f"{deep}: {rule} (I;16 pixels have more than 8 bits; convert the image)",
        f"{cut}: {rule} (the end of the file is missing)",
    ]


def test_the_names_of_classes_are_printed(tmp_path, capsys):
    """A class folder 10 is the second of 1, 10, 2: its label is 1, and its name is printed."""
    learner = learner_file(tmp_path / "learner.pt", "online", (0, 1), shape=(1, 16, 16), classes=3)
    pixels = np.random.default_rng(4).integers(0, 256, (12, 16, 16), dtype=np.uint8)
    paths = [str(tmp_path / f"{index}.png") for index in range(12)]
    for path, image in zip(paths, pixels, strict=True):
        Image.fromarray(image).save(path)
    best = expected(learner, pixels[:, None]).mean(axis=0).argmax(axis=1)

    def printed():
        assert predict.main([str(tmp_path / "learner.pt"), *paths]) == 0
        return [line.split(": ")[1].split(" (")[0] for line in capsys.readouterr().out.splitlines()]

    assert printed() == [str(label) for label in best], "a file of an older version has no names"
    names = ("1", "10", "2")
    checkpoint.save(tmp_path / "learner.pt", "online", learner, "rainbow", (1, 16, 16), names)
    assert printed() == [names[label] for label in best]
    assert predict.load(str(tmp_path / "learner.pt")).labels == names


def test_transparent_images_are_composited_as_in_the_learners_store(tmp_path, capsys):
    learner = learner_file(tmp_path / "learner.pt", "online", (4,), shape=(3, 16, 20))
    ink = np.zeros((16, 20, 4), dtype=np.uint8)
    ink[4:9, 5:12, 3] = 255
    Image.fromarray(ink).save(tmp_path / "ink.png")
    words = [str(tmp_path / "learner.pt"), str(tmp_path / "ink.png"), str(tmp_path / "ink.png")]
    for background, colour in (("white", (255, 255, 255)), ("#102030", (16, 32, 48))):
        checkpoint.save(tmp_path / "learner.pt", "online", learner, "rainbow", (3, 16, 20), (), background)
        flat = np.where(ink[..., 3:] == 255, 0, np.array(colour)).transpose(2, 0, 1)
        probabilities = predict.load(words[0])(words[1])
        np.testing.assert_allclose(probabilities, expected(learner, flat[None]), atol=1e-6)
        capsys.readouterr()
        assert predict.main(words) == 0
        assert capsys.readouterr().err == (
            f"IMAGES: 2 images have transparent pixels, which are composited on {background}\n"
        )


def test_a_diverged_seed_is_named_and_left_out(tmp_path, images, capsys):
    """Its probabilities are NaN: the mean over seeds was NaN, and its argmax class 0."""
    paths, pixels = images
    file = tmp_path / "learner.pt"
    learner = learner_file(file, "online", (3, 5, 9))

    def diverge(*rows):
        learner.model.phi.detach()[list(rows)] = torch.nan
        checkpoint.save(file, "online", learner, "rainbow", (3, 28, 28))

    diverge(1)
    assert predict.main([str(file), *paths]) == 0
    output = capsys.readouterr()
    assert output.err == f"{file}: seed 5 diverged, and is left out\n"
    finite = expected(learner, pixels)[[0, 2]]
    assert np.isfinite(finite).all()
    best = finite.mean(axis=0).argmax(axis=-1)
    assert output.out.splitlines() == [
        f"{path}: {best[at]} (probability {finite.mean(axis=0)[at, best[at]]:.3f}; "
        f"{(finite[:, at].argmax(axis=-1) == best[at]).sum()} of 2 seeds)"
        for at, path in enumerate(paths)
    ]
    assert np.isnan(predict.load(str(file))(*paths)[1]).all(), "in Python they are there"
    diverge(0)
    assert predict.main([str(file), *paths]) == 0
    assert capsys.readouterr().err == f"{file}: seeds 3 5 diverged, and are left out\n"
    diverge(2)
    assert predict.main([str(file), *paths]) == 2
    assert capsys.readouterr().err == (
        f"run: must have a seed that has not diverged (got {file}); an earlier checkpoint may have one: --step N\n"
    )


@pytest.mark.parametrize("rows", [(1,), (0, 1, 2)])
def test_the_last_step_is_that_of_the_stream_where_seeds_diverged(rows, tmp_path, tracking_uri):
    """The mean curve ends at batch 17, where the first seed diverged; the learner has seen 60 batches."""
    trial = Trial(synthetic.configuration("online"), (0, 1, 2))
    sweep = synthetic.make_sweep(tmp_path, "sweep", trial)
    curves = sweep.whole[trial.key]
    for row in rows:
        curves.diverged[row] = 17
        for curve in curves.by_batch.values():
            curve[row, 17:] = np.nan
    synthetic.write_all(sweep, tracking_uri)
    (runs,) = reader.find_sweep("sweep", tracking_uri).configurations
    client = MlflowClient(tracking_uri)
    assert max(point.step for point in client.get_metric_history(runs.run_id, "online_error")) == 16
    assert checkpoints.artifacts(client, runs.run_id, 60) == ["checkpoint/learner.pt"]
    with pytest.raises(OrchestratorError, match=r"^--step: must be .* kept: 60 \(the last\) \(got 17\)"):
        checkpoints.artifacts(client, runs.run_id, 17)
    client.delete_tag(runs.run_id, "foml_internal.batches")  # as of an earlier version, which has the table of curves
    if len(rows) == 1:
        assert checkpoints.artifacts(client, runs.run_id, 60) == ["checkpoint/learner.pt"]


def test_runs_without_a_learner(runs, tmp_path, capsys):
    def fault_of(run):
        with pytest.raises(OrchestratorError) as caught:
            predict.load(run, runs["uri"])
        (line,) = caught.value.faults
        return line

    unknown = "f" * 32
    assert (
        fault_of(unknown)
        == f"run: {runs['uri']} has none of this id (got {unknown}); the table of runs in MLflow's UI shows ids"
    )
    assert fault_of(runs["unfinished"]) == (
        f"run: has no checkpoint (got {runs['unfinished']}, KILLED); "
        "it has one once all its seeds are at the end of their streams"
    )
    line = fault_of(runs["sweep"])
    assert line.startswith(
        f"run: must be a configuration's or a seed's, not a sweep's (got {runs['sweep']}); there are: "
    )
    assert f"{runs['foml']} (foml K=5)" in line
    (tmp_path / "learner.pt").write_bytes(b"no learner")
    assert fault_of(str(tmp_path / "learner.pt")).startswith(
        f"{tmp_path}/learner.pt: must be an intact file written by"
    )
    assert fault_of(str(tmp_path / "none.pt")) == (
        f"{tmp_path}/none.pt: must be a readable checkpoint (No such file or directory)"
    )


def test_a_step_without_a_checkpoint(runs, tmp_path, capsys):
    assert predict.main([runs["foml"], "none.png", "--step", "3", "--tracking-uri", runs["uri"]]) == 2
    last = int(max(p.step for p in MlflowClient(runs["uri"]).get_metric_history(runs["foml"], "online_error"))) + 1
    assert capsys.readouterr().err.splitlines()[0] == (
        f"--step: must be a checkpoint that was kept: {last} (the last) (got 3); "
        "a sweep with keep_checkpoints: all keeps one of every task"
    )
    assert predict.load(runs["foml"], runs["uri"], step=last).seeds == [0, 1, 2]
    learner_file(tmp_path / "learner.pt", "online")
    learner_file(tmp_path / "learner-00000020.pt", "online", seeds=(4,))
    assert predict.load(str(tmp_path / "learner.pt"), step=20).seeds == [4]
    with pytest.raises(OrchestratorError) as caught:
        predict.load(str(tmp_path / "learner.pt"), step=30)
    assert str(caught.value) == "--step: must be a checkpoint that was kept: 20 (got 30)"
