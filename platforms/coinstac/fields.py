"""The fields of the form, in the order in which people see them."""

from __future__ import annotations

from common.data import NpzData, TableData
from common.networks import Mlp
from common.spec import Adam, Cosine, EarlyStopping, Federation, RankDad, RunSpec, Sgd, Training
from common.tasks import Classification
from platforms.coinstac.form import Field
from platforms.coinstac.parsing import document, names, regions, site_name, whole_numbers

STUDY, DATA, MODEL, TRAINING = "Study", "Data of all sites", "Model", "Training"
EXCHANGE, EXPERT, SITE = "What sites send", "For experts", "Your site"
SGD = ("optimizer", ("sgd",))
RANK_DAD, POWER_SGD = ("method", ("rank-dad",)), ("method", ("powersgd",))
NPZ, CSV, FREESURFER = ("reader", ("npz",)), ("reader", ("csv",)), ("reader", ("freesurfer",))
TABLES = ("reader", ("csv", "freesurfer"))
TABLE, FILE = "covariates.csv", "file"  # the name under which a member's table is laid out; its column of files

FIELDS = (
    Field("name", "Name of the study", STUDY, "name", RunSpec, "study"),
    Field(
        "sites",
        "Sites, in their order",
        STUDY,
        type="string",
        default="",
        parse=names,
        tooltip="Names of all sites with commas between them, as the members give them. A run does not begin with "
        "others. Empty: whoever takes part, in alphabetical order.",
    ),
    Field("task", "", STUDY, "task.name", default="classification", fixed=True),
    Field("classes", "Number of classes", STUDY, "task.classes", Classification, 2),
    Field(
        "reader",
        "Kind of data",
        DATA,
        "data.reader",
        default="npz",
        values=("npz", "csv", "freesurfer"),
        tooltip="npz: one file of arrays at every site. csv: one table at every site. freesurfer: FreeSurfer's "
        "statistics, one file for each subject, and a table that lists them.",
    ),
    Field(
        "shape",
        "Shape of a sample",
        DATA,
        "data.shape",
        default="64",
        when=NPZ,
        parse=whole_numbers,
        tooltip="Shape of one sample's x in the members' npz files, such as 64, or 28, 28.",
    ),
    Field("scale", "Factor of inputs", DATA, "data.scale", NpzData, when=NPZ),
    Field("file", "", DATA, "data.file", default=TABLE, when=CSV, fixed=True),
    Field("covariates_file", "", DATA, "data.covariates", default=TABLE, when=FREESURFER, fixed=True),
    Field("key", "", DATA, "data.key", default=FILE, when=FREESURFER, fixed=True),
    Field(
        "features",
        "Inputs",
        DATA,
        "data.features",
        default="",
        when=CSV,
        parse=names,
        tooltip="Columns of the table that are inputs, with commas between them.",
    ),
    Field(
        "regions",
        "Regions",
        DATA,
        "data.features",
        type="freesurfer",
        when=FREESURFER,
        parse=regions,
        tooltip="Regions and measures of FreeSurfer's statistics that are inputs, such as Left-Hippocampus.",
        more={"items": ["FreeSurfer"], "extensions": ["csv", "txt"]},
    ),
    Field("label", "Column of the label", DATA, "data.label", TableData, "diagnosis", when=TABLES),
    Field(
        "values",
        "Values of the label",
        DATA,
        "data.values",
        default="0, 1",
        when=TABLES,
        parse=names,
        tooltip="Of tables: values of the label with commas between them, in the order of the classes; of a column of "
        "booleans: false, true.",
    ),
    Field("missing", "Rows with gaps", DATA, "data.missing", TableData, when=TABLES),
    Field(
        "model",
        "Network",
        MODEL,
        "model.name",
        default="mlp",
        values=("mlp",),
        tooltip="mlp: a multilayer perceptron on the flattened input.",
    ),
    Field(
        "hidden",
        "Hidden layers",
        MODEL,
        "model.hidden",
        default="64, 32",
        parse=whole_numbers,
        tooltip="Width of each hidden layer, with commas between them.",
    ),
    Field("activation", "Activation", MODEL, "model.activation", Mlp),
    Field("dropout", "Dropout", MODEL, "model.dropout", Mlp),
    Field("epochs", "Epochs", TRAINING, "training.epochs", Training, 40),
    Field("batch_size", "Batch size", TRAINING, "training.batch_size", Training, 32),
    Field(
        "optimizer",
        "Optimizer",
        TRAINING,
        "training.optimizer.name",
        default="adam",
        values=("adam", "sgd"),
        tooltip="Optimizer, equal at every site.",
    ),
    Field("lr", "Learning rate", TRAINING, "training.optimizer.lr", Adam, 0.001),
    Field("momentum", "Momentum", TRAINING, "training.optimizer.momentum", Sgd, 0.9, when=SGD),
    Field("weight_decay", "Weight decay", TRAINING, "training.optimizer.weight_decay", Adam),
    Field(
        "schedule",
        "Schedule of the learning rate",
        TRAINING,
        "training.schedule.name",
        default="constant",
        values=("constant", "cosine"),
        tooltip="Learning-rate schedule: keep it, or let it fall along a cosine over the whole run.",
    ),
    Field("warmup", "Steps of warm-up", TRAINING, "training.schedule.warmup", Cosine, when=("schedule", ("cosine",))),
    Field(
        "monitor",
        "Metric that chooses the best model",
        TRAINING,
        "training.monitor",
        Training,
        "auc",
        values=Classification(classes=2).metrics,
    ),
    Field(
        "stop_early",
        "Stop early",
        TRAINING,
        type="boolean",
        default=False,
        tooltip="Stop when the validation metric has not improved for some epochs.",
    ),
    Field(
        "patience",
        "Epochs without improvement",
        TRAINING,
        "training.early_stopping.patience",
        EarlyStopping,
        10,
        when=("stop_early", (True,)),
    ),
    Field("validation", "Part for validation", TRAINING, "training.validation", Training),
    Field("test", "Part for the test", TRAINING, "training.test", Training),
    Field(
        "method",
        "Method",
        EXCHANGE,
        "method.name",
        default="rank-dad",
        values=("rank-dad", "dsgd", "powersgd"),
        tooltip="rank-dad sends a few rows of every layer's factors: the fewest bytes. dsgd sends full gradients. "
        "powersgd sends products with shared directions, in two exchanges a step.",
    ),
    Field("rank", "Rank", EXCHANGE, "method.rank", RankDad, 4, when=RANK_DAD),
    Field("powersgd_rank", "Directions", EXCHANGE, "method.rank", RankDad, 4, when=POWER_SGD,
          tooltip="Number of directions that powersgd sends of every layer."),
    Field("feedback", "Error feedback", EXCHANGE, "method.feedback", RankDad, when=RANK_DAD),
    Field("wire", "Precision on the wire", EXCHANGE, "method.wire", RankDad),
    Field("seed", "Seed", EXPERT, "seed", RunSpec),
    Field(
        "compare_every",
        "Steps between comparisons of weights",
        EXPERT,
        "federation.compare_every",
        Federation,
        tooltip="Steps after which all sites' weights are compared, and made equal again where they differ; a network "
        "of millions of weights is too large for that here: 0 compares them at the end alone.",
    ),
    Field(
        "spec",
        "Whole specification",
        EXPERT,
        type="object",
        default={},
        parse=document,
        tooltip="A run's specification as JSON. It takes the place of every field above but the sites: what it does "
        "not name has the specification's own default.",
    ),
    Field(
        "site",
        "Name of your site",
        SITE,
        "federation.sites",
        source="member",
        type="string",
        default="",
        parse=site_name,
        tooltip="Small letters, digits, dots and hyphens, such as hospital-a: results use it, so all members see it.",
    ),
    Field(
        "data_file",
        "Data file",
        SITE,
        source="member",
        type="files",
        when=NPZ,
        tooltip="One npz file with x [samples, …], y [samples] of class numbers from 0, and if you like split "
        "[samples] (0 train, 1 validation, 2 test).",
        more={"items": ["npz"], "extensions": [["npz"]]},
    ),
    Field(
        "covariates",
        "Table",
        SITE,
        source="member",
        type="csv",
        when=TABLES,
        tooltip="Of csv and freesurfer: a row for each subject, with the file's name first, the label and, of csv, the "
        "inputs.",
        more={"items": ["boolean", "number", "string"], "extensions": ["csv"]},
    ),
    Field(
        "min_rows",
        "Fewest samples behind anything that leaves",
        SITE,
        source="member",
        own={"type": "integer", "minimum": 1},
        default=10,
        tooltip="Of your site's policy: a run whose steps have fewer samples here is refused, and smaller validation "
        "and test sets are left out.",
    ),
    Field(
        "max_rank",
        "Largest rank that leaves",
        SITE,
        source="member",
        own={"type": "integer", "minimum": 0},
        default=0,
        tooltip="Of your site's policy: most rows that are sent of a layer's gradient. 0 is no limit; with one, dsgd "
        "is refused.",
    ),
)  # fmt: skip
