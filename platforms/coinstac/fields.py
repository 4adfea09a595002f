"""The fields of the form, in the order of display.

The app shows a member's field only for certain types, and only with a default. A default of 0 cannot be kept by ticking
a box.
"""

from __future__ import annotations

from rankdad.common.spec.solver import DEFAULT
from rankdad.platforms.coinstac.form import FormField, columns, document, label, network, rate

NEW, GIVEN, TEST = "random weights", "a trained model", "a trained model, test only"  # initial weights
TABLE_FILES = ("csv", "tsv", "txt")
OTHER_FILES = ("npz", "ts", "nii", "gz", "png", "jpg", "jpeg", "tif", "tiff", "bmp", "stats", "json", "safetensors")
OWNER = (
    FormField(
        "task",
        "Task",
        "select",
        "classification",
        "classification predicts which of several values a person has, regression predicts a number.",
        choices=("classification", "regression"),
    ),
    FormField(
        "label",
        "Column of what is predicted",
        "string",
        "",
        "Name of a column in every member's table, such as diagnosis. Its values become the classes; to name "
        "them yourself, write diagnosis = benign | malignant.",
        label,
    ),
    FormField(
        "positive",
        "Value that is the outcome",
        "string",
        "",
        "The one of two values whose risk is predicted, such as malignant. Empty: the one that is not called control, "
        "healthy, no, negative, 0 or the like; else the last in the alphabet. Results name it.",
    ),
    FormField(
        "features",
        "Columns of the inputs",
        "string",
        "",
        "Names of columns with commas between them; * and ? stand for other characters, and -name leaves a column out. "
        "Empty: all columns of numbers that all members have, without identifiers.",
        columns,
    ),
    FormField(
        "categorical",
        "Categorical columns",
        "string",
        "",
        "Inputs with texts, or with numbers as codes, such as sex, stage. Their values are "
        "collected from all members; to name them yourself, write sex = F | M.",
        columns,
    ),
    FormField(
        "standardise",
        "Standardise the inputs",
        "select",
        "federated",
        "federated subtracts the mean of all members' training rows and divides by their standard deviation; site "
        "uses each member's own; none leaves the inputs unchanged.",
        choices=("federated", "site", "none"),
    ),
    FormField(
        "evaluation",
        "Evaluation",
        "select",
        "k-fold",
        "k-fold tests every row once, in 5 folds, and trains a last model on all rows. holdout tests a fifth of the "
        "rows. leave-one-site-out tests every member on a model of the others.",
        choices=("k-fold", "holdout", "leave-one-site-out"),
    ),
    FormField(
        "network",
        "Network",
        "select",
        "linear",
        "linear is logistic or linear regression, solved exactly if all members' policies allow it and the fields "
        "from epochs to rank are unchanged; mlp is a network with hidden layers of these widths, for thousands "
        "of rows.",
        network,
        choices=("linear", "mlp-8", "mlp-16", "mlp-32", "mlp-64-32", "mlp-256-128", "mlp-1024-1024"),
    ),
    FormField(
        "epochs",
        "Epochs",
        "number",
        40,
        "Passes over the data in steps of 32 rows of the largest member. If a small member makes steps larger, "
        "the number of passes rises so that the number of steps is the same.",
        minimum=1,
    ),
    FormField(
        "batch_size",
        "Batch size",
        "number",
        0,
        "Rows of the largest member in a step. 0: 32, or as many as give the smallest member the minimum that it "
        "requires. With another number, epochs are used unchanged.",
        minimum=0,
    ),
    FormField("learning_rate", "Learning rate", "number", 0.003, "Learning rate of Adam.", rate, step=0.001),
    FormField(
        "patience",
        "Patience",
        "number",
        0,
        "Epochs without improvement in validation before training stops. 0: no early stopping; the best epoch's "
        "model is kept in both cases.",
        minimum=0,
    ),
    FormField(
        "method",
        "Method",
        "select",
        "rank-dad",
        "rank-dad sends a few rows for every layer: the fewest bytes. powersgd sends as many in two exchanges a step. "
        "dsgd sends full gradients; members refuse it unless their own JSON file allows them.",
        choices=("rank-dad", "powersgd", "dsgd"),
    ),
    FormField(
        "rank",
        "Rank",
        "number",
        DEFAULT.rank,
        "Maximum number of rows that rank-dad or powersgd sends for every layer; rank-dad sends them in int8.",
        minimum=1,
    ),
    FormField(
        "start",
        "Begin with",
        "select",
        NEW,
        f"{NEW}, or the model of an earlier run: each member chooses its files model.json, best.safetensors and "
        f"preparation.safetensors together with its table; {TEST} only tests it, on all rows.",
        choices=(NEW, GIVEN, TEST),
    ),
    FormField("seed", "Seed", "number", 0, "Seed of the initial weights.", minimum=0),
    FormField(
        "spec",
        "Whole specification",
        "object",
        {},
        "A run's specification as JSON. It replaces every field above; missing keys have the "
        "specification's defaults. docs/how-to/coinstac.md has examples.",
        document,
    ),
)
FILES = FormField(
    "files",
    "Files",
    "files",
    [],
    "Your table as CSV: a row of column names, then a row for each person. A small JSON file may also name your "
    "site and its policy. Other kinds of data are files, too.",
    source="member",
    extensions=TABLE_FILES + OTHER_FILES,
)
FOLDER = FormField(
    "folder",
    "Folder",
    "directory",
    "",
    "The folder of your data with its subfolders: volumes or pictures, and the table that lists them. A small "
    "JSON file in it may name your site and its policy.",
    source="member",
)
POLICY = (
    FormField(
        "min_rows",
        "Fewest rows behind anything that leaves",
        "number",
        8,
        "Your own limit: runs with fewer rows in a step here are refused, and smaller test sets are left out.",
        source="member",
        minimum=1,
    ),
    FormField(
        "max_rank",
        "Largest rank that leaves",
        "number",
        32,
        "Your own limit: maximum number of rows sent for a layer. dsgd, which sends full gradients, and powersgd need "
        "your own policy in a JSON file.",
        source="member",
        minimum=1,
    ),
)
FIELDS = {field.variable: field for field in (*OWNER, FILES, FOLDER, *POLICY)}


def shown(*, folder: bool) -> tuple[FormField, ...]:
    """Return the fields of one description. The app requires all fields of a member, so files or a folder."""
    return (*OWNER, FOLDER if folder else FILES, *POLICY)
