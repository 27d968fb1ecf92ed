"""What a kind of delivery target says of itself, in a folder below `handlers/deliver`, found by the entry points `ckptd.deliveries`.

Light, as the declarations of formats are: the daemon imports it to read the configuration, and no library of the kind.
"""

from __future__ import annotations

from typing import Literal

from daemon.contract.frozen import Frozen
from daemon.contract.light import dataclass

Holds = Literal["files", "model"]
"""What a target takes: whole folders of files that it keeps, or a model that it answers with."""


class NoOptions(Frozen):
    """Of a kind that needs none."""


@dataclass(frozen=True)
class DeliveryKind:
    """A way to carry an export away."""

    name: str
    """In `[[deliver]]` the value of `kind`: "hub"."""
    about: str
    """One clause for people, lower case, without a full stop: "a repository of the Hugging Face Hub"."""
    options: type[Frozen]
    """The keys that a table of this kind has beside the common ones. Values that hold secrets are `SecretUrl`."""
    entry: str
    """`module:class` of what carries it away, in the delivery's process: a `handlers.deliver.target.Target`."""
    holds: Holds = "files"
    variants: tuple[str, ...] = ()
    """Patterns of the variants that it can take, the first that was published is taken unless the table names some; none: all, together."""
    packages: tuple[str, ...] = ()
    """Libraries that it imports, as pip names them."""
    extra: str = ""
    """ckptd's extra that brings them: "hub" for `pip install ckptd[hub]`; "": they always come with it."""
    secret_variables: tuple[str, ...] = ()
    """Variables of the daemon's environment by which people give such a target its secret, handed on as they are where no file is named."""
