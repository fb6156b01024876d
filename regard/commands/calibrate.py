"""`regard calibrate`: measures this machine, for `regard cost`."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro
from rich.console import Console
from rich.text import Text

from regard.commands.arguments import check_writable
from regard.costs.device.calibrate import calibrate
from regard.costs.device.ceilings import COPY, measured_folder
from regard.errors import RegardError
from regard.runs.plan import device_for
from regard.runs.run_folder import check_place
from regard.storage import write_json

DEVICES = ("auto", "cpu", "cuda")


@dataclass(frozen=True)
class Calibrate:
    """Measure this machine, in a minute or two, for what `regard cost` predicts.

    $ regard calibrate
    $ regard calibrate --device cpu --out my-cpu.json
    """

    device: Annotated[str, tyro.conf.arg(metavar="NAME")] = "auto"
    """cpu, cuda, or what there is."""
    seconds: Annotated[float, tyro.conf.arg(metavar="X")] = 60.0
    """About how long."""
    out: Annotated[
        str, tyro.conf.arg(metavar="FILE", help_behavior_hint="(default: in the cache folder)")
    ] = ""
    """Where the JSON file goes."""

    def run(self, console: Console) -> None:
        if not self.seconds > 0:
            raise RegardError(f"--seconds must be more than 0, not {self.seconds}")
        if self.device.partition(":")[0] not in DEVICES:
            raise RegardError(f"--device must be one of {', '.join(DEVICES)}, not {self.device!r}")
        device = device_for(self.device)
        if self.out:
            check_writable(Path(self.out), replaced=True)
        else:
            check_place(measured_folder())
        found = calibrate(
            device, self.seconds, lambda what: console.print(Text(f"measuring {what} …", "dim"))
        )
        path = Path(self.out) if self.out else measured_folder() / f"{found.name}.json"
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(found.to_json(), path)
        except OSError as error:
            raise RegardError(f"cannot write {path}: {error.strerror}") from None
        rates = ", ".join(
            f"{kind} {grid.best / 1e12:.3g}"
            for kind, grid in found.products.items()
            if "/" not in kind
        )
        moved = found.traffic[COPY].at(1 << 26) / 1e9
        console.print(Text(f"{found.name}: TFLOP/s {rates}; {moved:.3g} GB/s; wrote {path}"))
