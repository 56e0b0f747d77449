"""What a model that already exists gives away about the rows it was trained on."""

from fedtrees.audit.audit import Audit, audit
from fedtrees.audit.exposure import Known
from fedtrees.audit.model import ModelFile
from fedtrees.audit.read import read_model

__all__ = ["Audit", "Known", "ModelFile", "audit", "read_model"]
