"""Audit of a trained model file: the information about its training rows that the file reveals."""

from fedtrees.audit.audit import Audit, audit
from fedtrees.audit.exposure import Known
from fedtrees.audit.model import ModelFile
from fedtrees.audit.readers import read_model

__all__ = ["Audit", "Known", "ModelFile", "audit", "read_model"]
