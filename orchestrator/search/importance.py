"""The importance of hyper-parameters for the objective, by Optuna's functional ANOVA."""

import json
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.importance import FanovaImportanceEvaluator, get_param_importances


def importances(draws: Sequence[Mapping[str, Any]], objectives: Sequence[float]) -> dict[str, float]:
    """The share of the objective's variance that each hyper-parameter explains alone, the most important one first.

    What only several of them explain together is in no share, so that the sum may be far below one.

    Args:
        draws: of each configuration, hyper-parameter → value; all have the same names.
        objectives: of each configuration, finite.

    Returns:
        Hyper-parameter → its share; empty if the objective is the same for all.
    """
    if len(set(objectives)) < 2:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    columns = {name: [_plain(each[name]) for each in draws] for name in draws[0]}
    distributions = {name: _distribution(values) for name, values in columns.items() if len(set(values)) > 1}
    study = optuna.create_study()
    for index, objective in enumerate(objectives):
        params = {name: columns[name][index] for name in distributions}
        study.add_trial(optuna.trial.create_trial(params=params, distributions=distributions, value=objective))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        # Normalized, the shares would add up to one also where no option explains anything alone.
        shares = get_param_importances(study, evaluator=FanovaImportanceEvaluator(seed=0), normalize=False)
    return {name: float(share) for name, share in shares.items()}


def _plain(value: Any) -> Any:
    """The value as Optuna takes it: lists as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else json.dumps(value)


def _distribution(values: Sequence[Any]) -> BaseDistribution:
    """The distribution over the range of these values."""
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return CategoricalDistribution(sorted(set(values), key=repr))
    low, high = min(values), max(values)
    log = low > 0 and high / low >= 10
    if all(isinstance(value, int) for value in values):
        return IntDistribution(low, high, log=log)
    return FloatDistribution(float(low), float(np.nextafter(high, np.inf)), log=log)
