"""Secrets that cannot be printed, pickled or copied by accident."""

from typing import Generic, NoReturn, TypeVar

from fedtrees.sealing.errors import ExposureError

Value = TypeVar("Value")


class Unprintable:
    """Base of classes that contain secrets: instances cannot be pickled or copied."""

    __slots__ = ()

    def __reduce_ex__(self, _: object = None) -> NoReturn:
        raise ExposureError(
            f"a {type(self).__name__} holds secrets: it is neither pickled nor copied; "
            "make it where it is used"
        )

    __copy__ = __deepcopy__ = __reduce_ex__


class Secret(Unprintable, Generic[Value]):
    """One secret value. Only `reveal` returns it."""

    __slots__ = ("__value",)

    def __init__(self, value: Value) -> None:
        self.__value = value

    def reveal(self) -> Value:
        """Return the value."""
        return self.__value

    def __repr__(self) -> str:
        return "<secret>"
