"""``ropescale datasets``: the texts that ``--data`` takes by a short name."""

from ..output.formatting import grid
from .options import sectioned_command, show


@sectioned_command("datasets", {})
def command() -> None:
    """List the Hub datasets that `--data` takes by a short name, with their split and field.

    \b
    Examples:
      ropescale datasets
      ropescale eval ./llama --data pg19 --lengths 4k,16k --schedule yarn

    An existing path takes precedence over a name. Texts are streamed; the dataset's commit is recorded with the result.
    """
    from ..evals.data.named_datasets import DATASETS, MOST

    rows = [[name, each.source, each.split, each.field, str(MOST)] for name, each in DATASETS.items()]
    show([grid(["name", "on the Hub", "split", "field", "at most"], rows, right=[4])])
