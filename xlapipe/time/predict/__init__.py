"""Predicted time of a step: a pure function of a plan and a calibration, without jax."""

from xlapipe.time.predict.predict import predict
from xlapipe.time.predict.prediction import PredictedKernel, Prediction, basis_of

__all__ = ["PredictedKernel", "Prediction", "basis_of", "predict"]
