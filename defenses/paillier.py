"""Defense `paillier`: secure aggregation under a Paillier key, with real cryptography.

The first client draws the key. All other clients encrypt their replies, the server multiplies the
ciphertexts, and the first client decrypts the product (Paillier 1999). The sums are computed in
`fedtrees.crypto.paillier_sum`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fedtrees.core.errors import UsageError
from fedtrees.core.parameters import flag, one_of, whole
from fedtrees.core.reasons import Reason
from fedtrees.core.registry import register
from fedtrees.core.secure_sum import SecureAggregation
from fedtrees.crypto.costs import DEFAULT_BITS, check_key_bits
from fedtrees.crypto.modes import BACKENDS
from fedtrees.crypto.paillier_sum import PaillierAggregation
from fedtrees.defenses.secure_sum import MODES, RealSums

# Symmetric strength in bits by length of the modulus (NIST SP 800-57, part 1, table 2).
_STRENGTH = {1024: 80, 2048: 112, 3072: 128}

_INT64_BITS = 64


@register.defense("paillier")
@dataclass(frozen=True)
class Paillier(RealSums):  # type: ignore[misc]
    """Let the server add encrypted sums (Paillier 1999), and one client decrypt their total.

    The first client draws the key, and only it knows the private key. The server multiplies the
    ciphertexts of all other clients and sends the product to the first client. This client decrypts
    the product, adds its own numbers and returns the sum. The server therefore learns the same as
    under ``secure-sum``, **and the first client learns every sum too**. The server and the first
    client together can read the reply of every client.

    Parameters
    ----------
    bits : {1024, 2048, 3072}
        Length of the modulus. 1024 is weak and provided for comparison.
    packing : int or None
        Number of plaintext bits for each sum, 8 to 64. None: as many as the declared numbers of
        rows and of rows per class require, or 64 if rows have weights or a party adds noise. A
        number that does not fit stops the run.
    djn : bool or None
        Clients without the private key use short exponents for their obfuscators (Damgaard, Jurik,
        Nielsen 2010), which needs an additional assumption. False: ``r^n``, about 15 times slower.
        None: True with gmpy2, and False with phe, which has no short exponents.
    mode : {"real", "ideal"}
        ``ideal``: the same messages and byte counts without cryptographic computations.
    backend : {"gmpy2", "phe"}
        Library that computes with ciphertexts: our implementation on gmpy2, or python-paillier.
        Models are the same to the bit, and messages are the same except for the ciphertexts, as
        with ``djn=false``.
    """

    bits: int = DEFAULT_BITS
    packing: int | None = whole(8, _INT64_BITS, default=None)
    djn: bool | None = flag(None)
    mode: str = one_of(MODES, default="real")
    backend: str = one_of(BACKENDS, default=BACKENDS[0])

    always_read = "sums-to-key-holder"
    additional_readers = frozenset({"client"})

    def __post_init__(self) -> None:
        super().__post_init__()
        check_key_bits("bits", self.bits)
        if self.backend == "phe" and self.djn:
            raise UsageError(
                "djn=true: backend=phe has no short exponents; leave out djn, or take backend=gmpy2"
            )

    @property
    def short_powers(self) -> bool:
        """Whether clients use short exponents, so that the key is sent with a base for them."""
        return self.backend == BACKENDS[0] if self.djn is None else self.djn

    def strength(self) -> tuple[int, tuple[str, ...]]:
        """Return the security level of the key in bits, and the assumptions."""
        return _STRENGTH[self.bits], ("paillier", *(["djn"] if self.short_powers else []))

    def secure_aggregation(self) -> SecureAggregation:
        """Create the secure aggregation of one run."""
        return PaillierAggregation(
            self.bits,
            packing=self.packing,
            short_powers=self.short_powers,
            ideal=self.mode == "ideal",
            backend=self.backend,
        )

    def broken_by(self, principals: Sequence[str], roles: Mapping[str, str]) -> Reason | None:
        """Return a reason if the server colludes with the first client, None otherwise."""
        holder = next((name for name, role in roles.items() if role == "client"), None)
        servers = [name for name in principals if roles[name] == "server"]
        if not servers or holder is None or holder not in principals:
            return None
        return Reason("key-and-ciphertexts", server=servers[0], holder=holder, defense=self.name)
