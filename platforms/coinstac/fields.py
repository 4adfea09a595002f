"""The fields of the form, in the order in which people see them.

A member's field must be of a type that the platform's app shows to members, and whose value it keeps. Without a default
the app does not show it; a default of 0 cannot be kept by ticking a box.
"""

from __future__ import annotations

from rankdad.platforms.coinstac.form import FormField, columns, document, label, network, rate

NEW, GIVEN, TEST = "random weights", "a trained model", "a trained model, test only"  # what a run begins with
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
        "Name of a column that every member's table has, such as diagnosis. Its values become the classes; to name "
        "them yourself, write diagnosis = benign | malignant.",
        label,
    ),
    FormField(
        "positive",
        "Value that is the outcome",
        "string",
        "",
        "Of two values the one whose risk is predicted, such as malignant. Empty: the one that is not called control, "
        "healthy, no, negative, 0 or the like; else the last in the alphabet. Results name it.",
    ),
    FormField(
        "features",
        "Columns of the inputs",
        "string",
        "",
        "Names of columns with commas between them; * and ? stand for other characters, and -name leaves a column out. "
        "Empty: all columns of numbers that all members have, but identifiers.",
        columns,
    ),
    FormField(
        "categorical",
        "Categorical columns",
        "string",
        "",
        "Inputs that hold no numbers, or numbers that stand for something else, such as sex, stage. Their values are "
        "collected from all members; to name them yourself, write sex = F | M.",
        columns,
    ),
    FormField(
        "standardise",
        "Standardise the inputs",
        "select",
        "federated",
        "federated subtracts the mean of all members' training rows and divides by their standard deviation; site "
        "uses each member's own; none leaves the inputs as they are.",
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
        "linear is logistic or linear regression, solved exactly where all members' policies allow it and the fields "
        "from epochs to rank are left as they are; mlp is a network with hidden layers of these widths, for thousands "
        "of rows.",
        network,
        choices=("linear", "mlp-8", "mlp-16", "mlp-32", "mlp-64-32", "mlp-256-128", "mlp-1024-1024"),
    ),
    FormField(
        "epochs",
        "Epochs",
        "number",
        40,
        "Passes over the data in steps of 32 rows of the largest member. Where a small member makes steps larger, "
        "there are so many more passes that the number of steps is the same.",
        minimum=1,
    ),
    FormField(
        "batch_size",
        "Batch size",
        "number",
        0,
        "Rows of the largest member in a step. 0: 32, or as many as give the smallest member the fewest rows that it "
        "asks for. With a number of your own, epochs are as many as you say.",
        minimum=0,
    ),
    FormField("learning_rate", "Learning rate", "number", 0.003, "Of Adam, in each step.", rate, step=0.001),
    FormField(
        "patience",
        "Patience",
        "number",
        0,
        "Epochs without a better validation after which training stops. 0: it never stops early; the best epoch's "
        "model is kept in any case.",
        minimum=0,
    ),
    FormField(
        "method",
        "Method",
        "select",
        "rank-dad",
        "rank-dad sends a few rows for every layer: the fewest bytes. powersgd sends as many in two exchanges a step. "
        "dsgd sends full gradients; a member refuses it, unless its own JSON file allows them.",
        choices=("rank-dad", "powersgd", "dsgd"),
    ),
    FormField(
        "rank",
        "Rank",
        "number",
        2,
        "Rows that rank-dad or powersgd sends for every layer, at most.",
        minimum=1,
    ),
    FormField(
        "start",
        "Begin with",
        "select",
        NEW,
        f"{NEW}, or the model of an earlier run, whose files model.json, best.safetensors and preparation.safetensors "
        f"each member chooses beside its table; {TEST} trains nothing, and tests it on all rows.",
        choices=(NEW, GIVEN, TEST),
    ),
    FormField("seed", "Seed", "number", 0, "Another seed begins with other weights.", minimum=0),
    FormField(
        "spec",
        "Whole specification",
        "object",
        {},
        "A run's specification as JSON. It takes the place of every field above; what it does not name has the "
        "specification's own default. docs/how-to/coinstac.md has examples.",
        document,
    ),
)
FILES = FormField(
    "files",
    "Files",
    "files",
    [],
    "Your table as CSV: a row of column names, then a row for each person. A small JSON file beside it may name your "
    "site and its policy. Other kinds of data come as files too.",
    source="member",
    extensions=TABLE_FILES + OTHER_FILES,
)
FOLDER = FormField(
    "folder",
    "Folder",
    "directory",
    "",
    "The folder of your data, with all that is below it: volumes or pictures, and the table that lists them. A small "
    "JSON file in it may name your site and its policy.",
    source="member",
)
POLICY = (
    FormField(
        "min_rows",
        "Fewest rows behind anything that leaves",
        "number",
        8,
        "Your own limit: a run whose steps have fewer rows here is refused, and smaller test sets are left out.",
        source="member",
        minimum=1,
    ),
    FormField(
        "max_rank",
        "Largest rank that leaves",
        "number",
        32,
        "Your own limit: most rows that are sent for a layer. dsgd, which sends full gradients, and powersgd need "
        "a policy of your own in a JSON file.",
        source="member",
        minimum=1,
    ),
)
FIELDS = {field.variable: field for field in (*OWNER, FILES, FOLDER, *POLICY)}


def shown(*, folder: bool) -> tuple[FormField, ...]:
    """Return the fields of one description: the app makes every member fill in every field, so files or a folder."""
    return (*OWNER, FOLDER if folder else FILES, *POLICY)
