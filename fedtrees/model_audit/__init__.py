"""Audit of a trained model file: the information about its training rows that the file reveals."""

from fedtrees.model_audit.audit import Audit, audit
from fedtrees.model_audit.exposure import Known
from fedtrees.model_audit.model import ModelFile
from fedtrees.model_audit.readers import read_model

__all__ = ["Audit", "Known", "ModelFile", "audit", "read_model"]
