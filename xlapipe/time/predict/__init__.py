"""Predicted time of a step: a pure function of a plan and a calibration, without jax."""

from xlapipe.time.predict.predict import PredictedKernel, Prediction, basis_of, predict

__all__ = ["PredictedKernel", "Prediction", "basis_of", "predict"]
