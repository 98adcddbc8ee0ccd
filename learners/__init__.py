"""Online meta-learning methods in PyTorch that train R replicates simultaneously.

Requires torch and numpy only. Axes in shapes: R replicates (one per seed), N or B datapoints, V images per datapoint
(1, or 2 for a pair), C channels or classes, H×W pixels, F features, P parameters of one network, S batch-norm
statistics of one network. For example phi [R, P], images [R, N, C, H, W], logits [R, B, C].
"""

from learners.base import Learner, Setting
from learners.batch import Batch
from learners.images import ImageTable, ViewArrays
from learners.registry import create, learner_class, names

__all__ = ["Batch", "ImageTable", "Learner", "Setting", "ViewArrays", "create", "learner_class", "names"]
