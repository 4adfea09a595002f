"""A site's own file, and what it shares with an owner's. What stands there is neither hashed nor sent."""

from __future__ import annotations

import ipaddress
import json
import math
import os
import re
from pathlib import Path
from typing import Annotated, Literal, Self
from urllib.parse import urlsplit

from pydantic import Discriminator, Tag, field_validator, model_validator

from rankdad.common.devices import CPU, Device
from rankdad.common.documents import Part, load_json, validate
from rankdad.common.errors import SpecError, UserError, counted
from rankdad.common.files import warn_if_readable
from rankdad.common.loading import Loading
from rankdad.common.numbers import PositiveFloat, PositiveInt
from rankdad.common.sites import SiteName
from rankdad.common.user_code import Permitted

ENGINES = ("flower", "nvflare")  # in the place of an address: the engine starts the site, and carries what it says
TOKEN = "RANKDAD_TOKEN"  # in the environment: the token, where no file is named
SECRETS = ("token_file", "key")  # fields of files that are a member's alone
PATHS = ("data", "output", "privacy", "weights", "spec", "policy", "token_file", "ca", "certificate", "key")


class Member(Part):
    """How somebody reaches the aggregator, and proves who they are. Relative paths start at the file's folder."""

    name: SiteName
    """The site's name in the run's spec; an owner's or viewer's in the consortium."""
    aggregator: str
    """The aggregator's address, such as http://127.0.0.1:8765; or flower or nvflare, which start the site
    themselves."""
    patience: PositiveFloat = 300.0
    """Seconds for which an aggregator that does not answer is tried."""

    token_file: str | None = None
    """File with the token that proves to the aggregator who this is; else the environment's RANKDAD_TOKEN."""
    ca: str | None = None
    """File of the authority that must have made the aggregator's certificate; without it, those the system trusts."""
    certificate: str | None = None
    """File of the certificate that is shown to the aggregator."""
    key: str | None = None
    """File of its key."""
    proxy: str | None = None
    """Address of the proxy through which the aggregator is reached, such as http://user:password@proxy:3128."""
    allow_plain_http: bool = False
    """Whether the aggregator may be reached over a network without encryption."""

    @field_validator("aggregator")
    @classmethod
    def _is_address(cls, value: str) -> str:
        if value in ENGINES:
            return value
        if re.search(r"[@?#]", value):  # it is logged
            raise ValueError("expected an address without a user, password or query: token_file names the token's file")
        if not re.fullmatch(r"https?://[^\s/]+(/\S*)?", value):
            raise ValueError(f"got {value!r}, expected an address such as http://10.0.0.1:8765")
        try:
            urlsplit(value).port  # noqa: B018
        except ValueError:
            raise ValueError(f"got {value!r}, whose port is none: expected a number up to 65535") from None
        return value

    @field_validator("proxy")
    @classmethod
    def _is_proxy(cls, value: str | None) -> str | None:
        if value is not None and not re.fullmatch(r"http://[^\s/]+:\d{1,5}/?", value):
            raise ValueError("expected an address such as http://proxy.example:3128")  # it may hold a password
        return value

    @model_validator(mode="after")
    def _is_a_pair(self) -> Self:
        if (self.certificate is None) != (self.key is None):
            raise ValueError("certificate and key: give both or none")
        if (self.certificate or self.ca) and not self.aggregator.startswith("https:"):
            raise ValueError("aggregator: ca and certificate need an address that begins with https://")
        return self

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a member's file.

        Raises:
            UserError: it is unreadable, or a field is wrong.
        """
        document = load_json(path)
        if isinstance(document, dict) and "aggregator" not in document and {"run", "federation"} & document.keys():
            raise UserError(
                f"{path}: is a run's file, expected a site's: name, aggregator, data, output", code="not-a-sites-file"
            )
        config = validate(cls, document, file=path)
        folder = path.resolve().parent
        places = {key: str(folder / value) for key in PATHS if (value := getattr(config, key, None))}
        for field in SECRETS:
            warn_if_readable(places.get(field), field)
        return config.checked(path).model_copy(update=places)

    def checked(self, source: str | Path) -> Self:
        """Return it, if the aggregator is reached as it should be.

        Raises:
            SpecError: by a network, without encryption, and nobody has allowed that.
        """
        if self.aggregator.startswith("http:") and not (self.allow_plain_http or _is_here(self.aggregator)):
            raise SpecError(
                "aggregator",
                f"{self.aggregator} would be reached without encryption: use https://, or set allow_plain_http to "
                "true in a network that you trust",
                file=source,
                code="not-encrypted",
            )
        return self

    def token(self) -> str | None:
        """Return the token, if there is one.

        Raises:
            UserError: its file is unreadable or holds something else.
        """
        if self.token_file is None:
            token, source = os.environ.get(TOKEN), f"the environment's {TOKEN}"
        else:
            token, source = _read_token(self.token_file), f"token_file {self.token_file}"
        if token is not None and not re.fullmatch(r"[\x21-\x7e]{20,500}", token):
            raise UserError(
                f"{source}: holds no token, expected one line of 20 or more letters and digits",
                code="token-malformed",
                field="token_file",
            )
        return token


class Parallel(Part):
    """A mesh of ranks: `{"data": 2, "tensor": 2}` is four, as torchrun starts them."""

    data: PositiveInt = 1
    """Number of parts of every batch."""
    shard: PositiveInt = 1
    """The same for ranks that also divide weights and moments, and gather a layer's weights to use it, as with fsdp."""
    tensor: PositiveInt = 1
    """Number of parts of each layer's weights and moments. These ranks have the same samples, and each computes with
    its part: attention heads and hidden units of transformer and vit, every other hidden layer of mlp."""

    pipeline: PositiveInt = 1
    """Number of stages of a transformer's or vit's blocks, one after the other: each rank has the blocks of its stage
    alone. This saves memory, not time; not with shard."""

    @property
    def batches(self) -> int:
        """Number of parts of every batch."""
        return self.data * self.shard

    @property
    def is_divided(self) -> bool:
        """Whether a rank has a part of the weights."""
        return self.shard * self.tensor * self.pipeline > 1


class SiteConfig(Member):
    """One site. Relative paths start at the folder of the file that holds them."""

    data: str
    """Folder of the data file that the spec names."""
    output: str
    """Folder for the trained model, the timings and the log."""
    privacy: str = "privacy"
    """Folder that lasts, for the site's secret and the log of what has left it: one for all runs."""
    other_patients: PositiveInt | None = None
    """The number in a refusal patients-replaced or rows-may-have-moved, to allow this run: most of its patients are
    new, or no row of its file has moved."""
    spec: str | None = None
    """A copy of the run's spec: the site then takes part in this run alone."""
    allow_factories: tuple[Permitted, ...] = ()
    """Model factories and readers whose code the site has read and permits to run: `models:make` from a file, and
    `models:make@ourmodels==1.2.3` from an installed package; `==*` is any version."""
    weights: str | None = None
    """Folder of the pretrained weights that a run's spec may name."""
    policy: str | None = None
    """The file with the site's limits on what leaves it; without one the defaults hold."""
    approval: Literal["policy", "manual"] = "policy"
    """With `--stay`: policy, the agent joins every run that the policy allows; manual, a member of the hospital's staff
    also approves each one."""
    device: Device = CPU
    """Where the model is trained: cpu; cuda:N; cuda, which is the first GPU, or under torchrun the local rank's; or
    auto, which is cuda where there is a GPU, else cpu, and says which."""
    parallel: Annotated[
        Annotated[Literal["data", "fsdp"], Tag("name")] | Annotated[Parallel, Tag("mesh")],
        Discriminator(lambda given: "mesh" if isinstance(given, dict | Parallel) else "name"),
    ] = "data"
    """How ranks under torchrun share the site: data, each with a part of every batch; fsdp, each keeps but a part of
    the weights and of the optimizer's moments, too; or numbers of ranks. One process has all of them."""
    loading: Loading = Loading()
    """How volumes and pictures are read: memory for them, and processes that read ahead."""

    def mesh(self, ranks: int) -> Parallel:
        """Return how so many ranks share the site.

        Raises:
            SpecError: another number was expected.
        """
        if not isinstance(self.parallel, Parallel):
            return Parallel(data=ranks) if self.parallel == "data" else Parallel(shard=ranks)
        sizes = json.dumps(self.parallel.model_dump(exclude_defaults=True))
        if (expected := math.prod(self.parallel.model_dump().values())) != ranks:
            started = f"torchrun has started {ranks}" if ranks > 1 else "the site is one process"
            raise SpecError(
                "parallel",
                f"got {sizes}, a mesh of {counted(expected, 'rank')}, but {started}: start as many, or change the mesh",
                code="parallel-does-not-fit",
            )
        return self.parallel


def _read_token(path: str) -> str:
    try:
        return Path(path).read_text(encoding="ascii", errors="replace").strip()
    except OSError as error:
        raise UserError(
            f"token_file: {path} cannot be read: {error.strerror}", code="cannot-read", field="token_file"
        ) from None


def _is_here(url: str) -> bool:
    """Tell whether an address is on this machine."""
    host = urlsplit(url).hostname or ""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
