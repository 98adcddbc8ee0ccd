"""What learns: online meta-learning methods in PyTorch, R replicates at once. Needs torch and numpy, nothing else."""

from learners.base import Learner, Setting
from learners.batch import Batch
from learners.images import ImageTable, ViewArrays
from learners.registry import create, learner_class, names

__all__ = ["Batch", "ImageTable", "Learner", "Setting", "ViewArrays", "create", "learner_class", "names"]
