"""MOCA's belief over change points.

Axes besides those of `learners`: H hypotheses, S first datapoint of a hypothesis, T datapoint of a window.
"""
