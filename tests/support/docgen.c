/* docgen.c - writes docs/tables from the program's own tables, so that they cannot disagree.
 *
 *     docgen SOURCE_FOLDER OUT_FOLDER
 *
 * One Markdown file per table, and whole pages into OUT_FOLDER/../pages. Exit status 1 where a row
 * has no test, a named test does not exist, or a file cannot be written. The output is the same on
 * every x86-64 machine. */
#include "backends/backend.h"
#include "base/env.h"
#include "base/str.h"
#include "doctor/doctor.h"
#include "doctor/verdict.h"
#include "graph/nodes.h"
#include "ir/optim_state.h"
#include "nn/layer.h"
#include "train/schedule_int.h"
#include "train/spec.h"

#include "docgen_server.h"
#include "docgen_wire.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *source; /* root of the source tree */
static int faults;

static void fault(const char *what, const char *name, const char *more)
{
    (void)fprintf(stderr, "docgen: %s \"%s\"%s%s\n", what, name, more[0] ? ": " : "", more);
    faults++;
}

/* ---- tests ---- */

/* The text of a file, kept for the next question; "" when it cannot be read. */
static const char *file_text(const char *path)
{
    static struct {
        char path[1024], *text;
    } cache[64];
    int i = 0;
    struct err e;
    size_t n;
    while (i < 63 && cache[i].text && strcmp(cache[i].path, path) != 0)
        i++;
    if (cache[i].text && strcmp(cache[i].path, path) == 0)
        return cache[i].text;
    mem_free(cache[i].text);
    (void)snprintf(cache[i].path, sizeof cache[i].path, "%s", path);
    if (file_read(path, 1 << 24, &cache[i].text, &n, &e) != ST_OK)
        cache[i].text = mem_strdup("");
    return cache[i].text;
}

/* A long TEST( has its name on a line of its own. */
static bool on_own_line(const char *text, const char *colon)
{
    char want[256];
    if (!colon)
        return false;
    (void)snprintf(want, sizeof want, "TEST(\n    %s,", colon + 1);
    return strstr(text, want) != NULL;
}

/* "products.conv", "mem/plan_test.c:name" or "tests/e2e/file:name": whether there is such a test.
 */
static bool test_exists(const char *test)
{
    char path[1024], want[256];
    const char *colon = strchr(test, ':'), *dot = strchr(test, '.');
    if (colon) {
        (void)snprintf(path, sizeof path, "%s/src/%.*s", source, (int)(colon - test), test);
        (void)snprintf(want, sizeof want, "(%s,", colon + 1);
        if (str_starts(test, "tests/")) {
            (void)snprintf(path, sizeof path, "%s/%.*s", source, (int)(colon - test), test);
            (void)snprintf(want, sizeof want, "%s", colon + 1);
        }
    } else if (dot) {
        (void)snprintf(
            path, sizeof path, "%s/tests/parity/test_%.*s.py", source, (int)(dot - test), test);
        (void)snprintf(want, sizeof want, "def test_%s(", dot + 1);
    } else {
        return false;
    }
    return strstr(file_text(path), want) != NULL || on_own_line(file_text(path), colon);
}

/* The tests of one row, checked, as a cell. */
static void add_tests(struct str *out, const char *row, const char *tests)
{
    if (!tests || !tests[0]) {
        fault("no test for", row, "add a row to tests/support/docgen.def");
        return;
    }
    char *list = mem_strdup(tests), *rest = list, *test;
    for (int i = 0; (test = strtok_r(rest, " ", &rest)) != NULL; i++) {
        if (!test_exists(test))
            fault("no such test", test, row);
        str_printf(out, "%s%s", i ? ", " : "", test);
    }
    mem_free(list);
}

static const char tests_note[] =
    "Tests: `products.conv` is `test_conv` of tests/parity/test_products.py, which compares with "
    "PyTorch; `file:name` is\n`TEST(name)` of that file in src/, or a function of that file in "
    "tests/.\n";

static void head(struct str *out, const char *title, const char *text, const char *columns)
{
    str_printf(
        out, "# %s\n\nMade by scripts/docs from the program's tables; do not edit.\n\n%s\n", title,
        text);
    str_printf(out, "|%s|\n|", columns);
    for (const char *c = columns; *c; c++)
        if (*c == '|')
            str_add(out, "---|");
    str_add(out, "---|\n");
}

static void add_bits(struct str *out, unsigned bits, const char *const *names, int n)
{
    int shown = 0;
    for (int i = 0; i < n; i++)
        if (bits >> i & 1)
            str_printf(out, "%s%s", shown++ ? ", " : "", names[i]);
}

/* ---- operators ---- */

#define ISA(code, name)                                                                            \
    extern const struct kernel kernel_##name##_portable, kernel_##name##_avx2,                     \
        kernel_##name##_avx512;
#define ONE(code, name) extern const struct kernel kernel_##name;
#include "backends/cpu/kernels.def"
#undef ISA
#undef ONE

/* Kernels by operator. The first set runs everywhere; `same`: there is only one form of it. */
static const struct {
    const struct kernel *portable, *avx2, *avx512;
    bool same;
} kernels[OP_COUNT] = {
#define ISA(code, name)                                                                            \
    [OP_##code] = {                                                                                \
        &kernel_##name##_portable, &kernel_##name##_avx2, &kernel_##name##_avx512, false},
#define ONE(code, name) [OP_##code] = {&kernel_##name, &kernel_##name, &kernel_##name, true},
#include "backends/cpu/kernels.def"
#undef ISA
#undef ONE
};

static const char *const family_name[OP_COUNT] = {
#define X(NAME, text, lo, hi, outs, mutated, class, flags, family) [OP_##NAME] = #family,
#include "ir/ops.def"
#undef X
};
static const char *const op_tests[OP_COUNT] = {
#define OPERATOR(NAME, tests) [OP_##NAME] = tests,
#include "docgen.def"
};
struct family {
    const char *name, *shape, *gradient;
};
static const struct family families[] = {
#define FAMILY(name, shape, gradient) {#name, shape, gradient},
#include "docgen.def"
};
static const char *const class_names[] = {
    [AUTOCAST_NONE] = "left alone",
    [AUTOCAST_LOW] = "low",
    [AUTOCAST_FULL] = "float32",
    [AUTOCAST_WIDE] = "follows"};

static const struct family *family_of(int code)
{
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        if (strcmp(families[i].name, family_name[code]) == 0)
            return &families[i];
    fault("no FAMILY row for", family_name[code], "tests/support/docgen.def");
    return &families[0];
}

static void add_kernels(struct str *out, int code, const struct ir_op_row *row)
{
    if (row->flags & OPF_VIEW) {
        str_add(out, "none: a view");
    } else if (!kernels[code].portable) {
        str_add(out, "**none yet**");
    } else if (kernels[code].same) {
        str_printf(out, "%s", kernels[code].portable->name);
    } else {
        const char *p = kernels[code].portable->name, *v = kernels[code].avx2->name,
                   *w = kernels[code].avx512->name;
        if (strcmp(p, v) == 0 && strcmp(p, w) == 0)
            str_printf(out, "%s (portable, avx2, avx512)", p);
        else
            str_printf(out, "%s (portable), %s (avx2), %s (avx512)", p, v, w);
    }
}

static void operators(struct str *out)
{
    static const char *const flags[] = {"view",    "in place", "recompute",
                                        "element", "channel",  "no gradient"};
    head(
        out, "Operators",
        "Rows of src/ir/ops.def, which explains operands, autocast classes and flags. Kernels with "
        "instruction sets in\nbrackets are compiled once for each; the others are one piece of "
        "code "
        "around inner loops that are. bfloat16 products\nuse AVX512_BF16 where the machine has it. "
        "The gradient column names what the row's gradient rule appends to the\nprogram, so that "
        "the planner sees it.\n\n"
        "Tests: `products.conv` is `test_conv` of tests/parity/test_products.py, which compares "
        "the "
        "operator and its gradients\nwith PyTorch; `file:name` is `TEST(name)` of that file in "
        "src/.\n",
        "operator|operands|results|shape of the result|autocast|flags|gradient|kernel|tests");
    for (int i = 0; i < OP_COUNT; i++) {
        const struct ir_op_row *row = ir_op_row((enum opcode)i);
        const struct family *f = family_of(i);
        str_printf(out, "|%s|", row->name);
        if (row->n_in_max < 0)
            str_printf(out, "%d or more|", row->n_in_min);
        else if (row->n_in_max != row->n_in_min)
            str_printf(out, "%d to %d|", row->n_in_min, row->n_in_max);
        else
            str_printf(out, "%d|", row->n_in_min);
        if (row->n_out > 0)
            str_printf(out, "%d|", row->n_out);
        else
            str_add(out, row->mutated ? "as updated|" : "as operands|");
        str_printf(out, "%s|%s|", f->shape, class_names[row->autocast]);
        add_bits(out, row->flags, flags, 6);
        bool has = row->grad && !(row->flags & OPF_NOGRAD);
        char own[64];
        enum opcode unused;
        (void)snprintf(own, sizeof own, "%s_grad", row->name);
        str_printf(out, "|%s|", !has ? "none" : ir_opcode_find(own, &unused) ? own : f->gradient);
        if (has && !f->gradient[0])
            fault("no gradient described for family", f->name, "tests/support/docgen.def");
        add_kernels(out, i, row);
        str_add(out, "|");
        add_tests(out, row->name, op_tests[i]);
        str_add(out, "|\n");
    }
    str_add(
        out, "\nLeft out, and coming with transformers: recurrent layers. Left out\naltogether: "
             "second derivatives (operators that only gradients use "
             "have no gradient of their own).\n");
}

static void autocast(struct str *out)
{
    head(
        out, "Autocast",
        "What precision `bf16` and `fp16` change, operator by operator (rows of src/ir/ops.def). "
        "Parameters, gradients and\noptimizer state stay float32. Operators of the backward pass "
        "run "
        "in the types of the forward pass. See [precision](../precision.md).\n",
        "class|what it means|operators");
    static const struct {
        enum autocast class;
        const char *text;
    } rows[] = {
        {AUTOCAST_LOW, "operands are cast to the low type; sums inside are float32"},
        {AUTOCAST_FULL, "low operands are cast up; the result is float32"},
        {AUTOCAST_WIDE, "runs in the type of its operands; of mixed operands, the widest"},
        {AUTOCAST_NONE, "follows its first operand; layer, group and instance norm take and give "
                        "float32, batch norm "
                        "keeps its input's type and computes in float32"}};
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++) {
        str_printf(out, "|%s|%s|", class_names[rows[r].class], rows[r].text);
        int n = 0;
        for (int i = 0; i < OP_COUNT; i++) {
            const struct ir_op_row *row = ir_op_row((enum opcode)i);
            bool backward = str_ends(row->name, "_grad") || (row->flags & OPF_NOGRAD);
            if (row->autocast == rows[r].class && !backward)
                str_printf(out, "%s%s", n++ ? ", " : "", row->name);
        }
        str_add(out, "|\n");
    }
    str_add(
        out,
        "\nLeft out of the lists: operators that only gradients and updates use. They are never "
        "cast; updates are float32.\n");
}

/* ---- layers ---- */

static void add_params(struct str *out, const char *family)
{
    struct layer_param p;
    for (int i = 0, n = 0; layer_param_at(family, i, &p); i++) {
        if (strcmp(p.kind, "ANY") == 0 || strcmp(p.name, "device") == 0 ||
            strcmp(p.name, "dtype") == 0)
            continue;
        str_printf(out, "%s%s", n++ ? ", " : "", p.name);
        str_add(out, p.fallback[0] ? " " : "");
        for (const char *c = p.fallback; *c; c++) {
            if (*c == '|') /* choices; the first is the default */
                str_add(out, "\" or \"");
            else
                str_add_n(out, c, 1);
        }
    }
}

/* The parity tests of a family, with a blank in front. */
static const char *parity_of(const char *family)
{
    static const struct {
        const char *family, *tests;
    } rows[] = {
#define LAYERS(family, tests) {#family, " " tests},
#include "docgen.def"
    };
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].family, family) == 0)
            return rows[i].tests;
    fault("no LAYERS row for family", family, "tests/support/docgen.def");
    return "";
}

static void layers(struct str *out)
{
    head(
        out, "Layers",
        "Layer types of a SequentialModel (rows of src/nn/layers.def): PyTorch's class, parameters "
        "with "
        "their defaults (none:\nmust be given), how many inputs a layer takes. State names, shapes "
        "and "
        "starting distributions are PyTorch's.\n`device` and `dtype` are accepted as null.\n",
        "layer|PyTorch|parameters|inputs|tests");
    for (int i = 0; i < layer_type_count(); i++) {
        const struct layer_type *t = layer_type_at(i);
        char test[128];
        str_printf(out, "|%s|%s|", t->name, t->torch);
        add_params(out, t->family);
        if (t->inputs_max > t->inputs_min)
            str_printf(out, "|%d to %d|", t->inputs_min, t->inputs_max);
        else
            str_printf(out, t->inputs_max < 0 ? "|%d or more|" : "|%d|", t->inputs_min);
        (void)snprintf(test, sizeof test, "nn/layer_test.c:%s%s", t->test, parity_of(t->family));
        add_tests(out, t->name, test);
        str_add(out, "|\n");
    }
    str_printf(out, "\n%s", tests_note);
    str_add(
        out, "\nLeft out, with an error that names layer and parameter: padding_mode other than "
             "\"zeros\" for convolutions;\ntrack_running_stats of InstanceNorm2d; proj_size; kdim, "
             "vdim, add_bias_kv and add_zero_attn. More about\nlayers over sequences: "
             "[layers.md](../layers.md).\n");
}

/* ---- losses, optimizers, schedulers ---- */

static void losses(struct str *out)
{
    static const char *const tests[LOSS_TYPE_COUNT] = {
#define LOSS(type, tests) [LOSS_TYPE_##type] = tests,
#include "docgen.def"
    };
    enum { TAKES_SMOOTHING = 1, TAKES_WEIGHT = 2, TAKES_IGNORE = 4, TAKES_POS_WEIGHT = 8 };
    static const char *const names[] = {"label_smoothing", "weight", "ignore_index", "pos_weight"};
    static const unsigned takes[LOSS_TYPE_COUNT] = {
#define X(type, name, kind, bits) [LOSS_TYPE_##type] = (bits),
#include "train/losses.def"
#undef X
    };
    head(
        out, "Losses",
        "Types of the Loss node (rows of src/train/losses.def), with torch.nn's meaning and "
        "defaults. A "
        "parameter that a\nloss does not take must be left at its default, else the run does not "
        "start.\n",
        "loss|takes beside reduction|targets|accuracy counted|tests");
    for (int i = 0; i < LOSS_TYPE_COUNT; i++) {
        enum loss_type t = (enum loss_type)i;
        bool pair = t == LOSS_TYPE_MARGIN_RANKING || t == LOSS_TYPE_COSINE_EMBEDDING;
        str_printf(out, "|%s|", loss_type_name(t));
        add_bits(out, takes[i], names, 4);
        str_printf(
            out, "|%s|%s|",
            t == LOSS_TYPE_CROSS_ENTROPY ? "class numbers, or probabilities"
            : t == LOSS_TYPE_NLL         ? "class numbers"
            : t == LOSS_TYPE_LM_CROSS_ENTROPY
                ? "token numbers of every position (node LMCrossEntropyLoss)"
            : pair ? "1 or -1; the model has two outputs"
                   : "numbers of the output's shape",
            loss_has_classes(t) ? "of class numbers" : "no");
        add_tests(out, loss_type_name(t), tests[i]);
        str_add(out, "|\n");
    }
    str_printf(out, "\n%s", tests_note);
    str_add(
        out,
        "\nLeft out: margins, beta, delta and log_target, which the node does not have (PyTorch's "
        "defaults hold); reduction\n`none` in training, where the loss must be one number; chunked "
        "losses (with transformers).\n");
}

static void optimizers(struct str *out)
{
    static const char *const tests[OPTIM_COUNT] = {
#define OPTIMIZER(kind, tests) [OPTIM_##kind] = tests,
#include "docgen.def"
    };
    enum {
        TAKES_WEIGHT_DECAY = 1,
        TAKES_MOMENTUM = 2,
        TAKES_BETAS = 4,
        TAKES_EPS = 8,
        TAKES_AMSGRAD = 16,
        TAKES_NESTEROV = 32,
        TAKES_DAMPENING = 64,
        TAKES_FACTORS = 128
    };
    static const char *const names[] = {
        "weight_decay", "momentum", "betas",     "eps",
        "amsgrad",      "nesterov", "dampening", "beta2_decay, eps1, eps2, d"};
    static const unsigned takes[OPTIM_COUNT] = {
#define X(kind, bits, ...) [OPTIM_##kind] = (bits),
#include "train/optimizers.def"
#undef X
    };
    head(
        out, "Optimizers",
        "Types of the Optimizer node (rows of src/train/optimizers.def), with torch.optim's "
        "formulas. "
        "State is what each\nremembers per parameter, in float32, as PyTorch names it; names in "
        "brackets "
        "exist only with momentum or amsgrad;\nscalars are one number per tensor.\n",
        "optimizer|takes beside lr|state|bytes of state per weight|tests");
    for (int i = 0; i < OPTIM_COUNT; i++) {
        struct optim_attr plain = {.kind = (enum optim_kind)i};
        struct optim_attr full = {.kind = (enum optim_kind)i, .momentum = 0.9, .amsgrad = true};
        struct shape weight = SHAPE(1000, 1000), least = weight;
        plain.factored = full.factored = plain.kind == OPTIM_ADAFACTOR;
        int64_t bytes = 0;
        str_printf(out, "|%s|", optim_name(plain.kind));
        add_bits(out, takes[i], names, 8);
        str_add(out, "|");
        if (!(takes[i] & TAKES_MOMENTUM))
            full.momentum = 0;
        for (int k = 0; k < optim_state_count(&full); k++) {
            const char *name = optim_state_name(&full, k);
            least = optim_state_shape(&full, k, &weight);
            bool always = k < optim_state_count(&plain);
            str_printf(out, "%s%s%s%s", k ? ", " : "", always ? "" : "[", name, always ? "" : "]");
            if (shape_count(&least) == 1)
                str_add(out, " (scalar)");
            else if (shape_count(&least) < shape_count(&weight))
                str_add(out, strstr(name, "row") ? " (per row)" : " (per column)");
            else if (always)
                bytes += dtype_size(optim_state_dtype(&full, k));
        }
        str_printf(out, "%s|%lld|", optim_state_count(&full) ? "" : "none", (long long)bytes);
        add_tests(out, optim_name(plain.kind), tests[i]);
        str_add(out, "|\n");
    }
    str_printf(out, "\n%s", tests_note);
    str_add(
        out, "\nAdafactor's parameters of rank 0 and 1 have `variance`, of their shape, instead. "
             "Left out: parameter groups; what PyTorch has and "
             "the node "
             "does not (RMSprop's\ncentered, maximize, foreach).\n");
}

static void schedulers(struct str *out)
{
    static const char *const tests[SCHEDULE_COUNT] = {
#define SCHEDULE(id, tests) [SCHEDULE_##id] = tests,
#include "docgen.def"
    };
    static const char *const names[] = {"step_size", "gamma",       "T_max",
                                        "max_lr",    "total_steps", "warmup_steps"};
    head(
        out, "Schedulers",
        "Types of the LRScheduler node (rows of src/train/schedules.def). The class is the one of "
        "torch.optim.lr_scheduler\nwhose numbers are given and whose state goes into checkpoints; "
        "src/train/schedule.h has the formulas of the warm-up family.\n",
        "scheduler|PyTorch|parameters|tests");
    for (int i = 0; i < SCHEDULE_COUNT; i++) {
        str_printf(out, "|%s|%s|", schedule_rows[i].name, schedule_rows[i].class);
        add_bits(out, schedule_rows[i].uses, names, 6);
        str_add(out, "|");
        add_tests(out, schedule_rows[i].name, tests[i]);
        str_add(out, "|\n");
    }
    str_printf(out, "\n%s", tests_note);
    str_add(
        out,
        "\nLeft out: what PyTorch's classes take and the node does not have (patience of the "
        "plateau, "
        "eta_min, pct_start):\nPyTorch's defaults hold. Schedulers chained one behind another.\n");
}

/* ---- nodes ---- */

static const struct {
    const char *type, *tests;
} node_tests[] = {
#define NODE(type, tests) {type, tests},
#include "docgen.def"
};

static void add_ports(struct str *out, const struct node_port *p)
{
    for (int i = 0; p && p[i].name; i++)
        str_printf(out, "%s%s%s", i ? ", " : "", p[i].name, p[i].optional ? "?" : "");
}

static void add_node(struct str *out, const struct node_type *t)
{
    const char *tests = NULL;
    for (size_t i = 0; i < sizeof node_tests / sizeof *node_tests; i++)
        if (strcmp(node_tests[i].type, t->name) == 0)
            tests = node_tests[i].tests;
    str_printf(out, "|%s|%s|%s|", t->name, t->category, t->about);
    add_ports(out, t->inputs);
    str_add(out, "|");
    add_ports(out, t->outputs);
    str_add(out, "|");
    add_tests(out, t->name, tests);
    str_add(out, "|\n");
}

/* The types of one category that do not run, as a line of a list. */
static void add_left_out(struct str *out, const char *category)
{
    int n = 0;
    for (size_t i = 0; i < node_type_count(); i++) {
        const struct node_type *t = node_type_at(i);
        if ((t->flags & NODE_FLAG_RUNNABLE) || strcmp(t->category, category) != 0)
            continue;
        if (n == 0)
            str_printf(out, "\n- %s: ", category);
        else
            str_add(out, n % 8 == 0 ? ",\n  " : ", ");
        str_add(out, t->name);
        n++;
    }
}

/* Whether row i is the first of its category. */
static bool begins_category(size_t i)
{
    for (size_t k = 0; k < i; k++)
        if (strcmp(node_type_at(k)->category, node_type_at(i)->category) == 0)
            return false;
    return true;
}

static void nodes(struct str *out)
{
    int known = (int)node_type_count(), run = 0;
    for (size_t i = 0; i < node_type_count(); i++)
        run += (node_type_at(i)->flags & NODE_FLAG_RUNNABLE) != 0;
    head(
        out, "Nodes",
        "Node types of a graph file that run in this version; `snug nodes TYPE` shows parameters, "
        "defaults and bounds.\nA `?` marks an input that may stay unconnected.\n",
        "node|category|what it does|inputs|outputs|tests");
    for (size_t i = 0; i < node_type_count(); i++)
        if (node_type_at(i)->flags & NODE_FLAG_RUNNABLE)
            add_node(out, node_type_at(i));
    str_printf(out, "\n%s", tests_note);
    str_printf(
        out,
        "\n## Left out\n\n%d types are known, so that graphs with them load, validate and are "
        "saved "
        "unchanged. These %d do not run in this\nversion; `run` and `plan` say so, naming the "
        "node:\n",
        known, known - run);
    for (size_t i = 0; i < node_type_count(); i++)
        if (begins_category(i))
            add_left_out(out, node_type_at(i)->category);
    str_add(
        out,
        "\n\nOf the nodes that run, `snug nodes TYPE` marks the values that do not: data sets SVHN "
        "and STL10, strategies for several\ncards, levers of later versions.\n");
}

/* ---- levers ---- */

enum lever_row {
#define X(ID, ...) LEVER_##ID,
#include "train/levers.def"
#undef X
    LEVER_COUNT
};

static void levers(struct str *out)
{
    static const char *const tests[LEVER_COUNT] = {
#define LEVER(id, tests) [LEVER_##id] = tests,
#include "docgen.def"
    };
    enum { SAME, ROUNDING, OTHER };
    static const struct {
        int numbers;
        const char *name, *settings, *allow, *saves, *costs, *keeps, *not_with;
    } rows[] = {
#define X(ID, numbers, name, settings, allow, saves, costs, keeps, not_with)                       \
    {numbers, name, settings, allow, saves, costs, keeps, not_with},
#include "train/levers.def"
#undef X
    };
    static const char *const numbers[] = {"the same bits", "the same but for rounding", "others"};
    head(
        out, "Levers",
        "What lowers the memory of a run (rows of src/train/levers.def); all are off by default. "
        "What "
        "each saves on\nthe examples, predicted beside measured: [the ladder](../ladder.md). How "
        "each "
        "works: [levers](../levers.md).\n",
        "lever|set|saves|costs|numbers|keeps|cannot be combined with, and why|tests");
    for (int i = 0; i < LEVER_COUNT; i++) {
        str_printf(out, "|%s|", rows[i].name);
        for (const char *s = rows[i].settings; *s && strncmp(s, " | ", 3) != 0; s++)
            str_printf(out, *s == ' ' ? ", " : "%c", *s);
        str_printf(
            out, "|%s|%s|%s|%s|%s|", rows[i].saves, rows[i].costs, numbers[rows[i].numbers],
            rows[i].keeps, rows[i].not_with);
        add_tests(out, rows[i].name, tests[i]);
        str_add(out, "|\n");
    }
    str_printf(out, "\n%s", tests_note);
    str_add(
        out, "\nLeft out: optimizer state on the host and activations on the host (with cards); "
             "strategies over several cards.\n");
}

/* ---- rules of the doctor ---- */

enum { OOM_CASES = 1000 };
static struct {
    char *file;
    char rule[48];
} oom_cases[OOM_CASES];
static int n_oom_cases;

static int by_file(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

/* Which rule a case of the corpus meets. */
static void oom_case(const char *folder, char *file)
{
    char path[1200], *data;
    size_t n;
    struct err e = {0};
    json_t *d = NULL;
    (void)path_join(folder, file, path, sizeof path);
    oom_cases[n_oom_cases].file = file;
    if (file_read(path, 1 << 24, &data, &n, &e) != ST_OK) {
        fault("cannot read", path, e.text);
        return;
    }
    const char *text = data;
    while (strncmp(text, "#: ", 3) == 0 && strchr(text, '\n'))
        text = strchr(text, '\n') + 1;
    if (doctor_diagnose_bytes(text, n - (size_t)(text - data), file, &d, &e) == ST_OK)
        (void)snprintf(
            oom_cases[n_oom_cases].rule, sizeof oom_cases->rule, "%s", json_get_str(d, "rule", ""));
    n_oom_cases++;
    json_decref(d);
    mem_free(data);
}

static void oom_corpus(void)
{
    static char *files[OOM_CASES];
    char folder[1200];
    int n = 0;
    (void)path_join(source, "tests/corpus/oom", folder, sizeof folder);
    DIR *dir = opendir(folder);
    if (!dir) {
        fault("cannot read", folder, "");
        return;
    }
    for (struct dirent *d; (d = readdir(dir)) && n < OOM_CASES;)
        if (str_ends(d->d_name, ".txt"))
            files[n++] = mem_strdup(d->d_name);
    (void)closedir(dir);
    qsort(files, (size_t)n, sizeof *files, by_file);
    for (int i = 0; i < n; i++)
        oom_case(folder, files[i]);
}

static void add_oom_examples(struct str *out, const struct verdict_rule *rule)
{
    int n = 0;
    bool elsewhere =
        strncmp(rule->name, "snapshot_", 9) == 0 || strncmp(rule->name, "own_", 4) == 0;
    for (int i = 0; i < n_oom_cases; i++)
        if (strcmp(oom_cases[i].rule, rule->name) == 0 && n++ < 1)
            str_printf(out, "`%s`", oom_cases[i].file);
    if (n > 1)
        str_printf(out, " and %d more", n - 1);
    if (!n && !elsewhere)
        fault("no example in tests/corpus/oom of rule", rule->name, "");
    str_add(out, "|");
}

static void oom_rules(struct str *out)
{
    struct verdict_rule rule;
    head(
        out, "Rules of the doctor",
        "Which kind of out-of-memory it was (rows of src/doctor/rules.def): the first rule whose "
        "condition "
        "holds gives the\nverdict; remedies are offered in this order, without those that are in "
        "force or "
        "do not apply. What the words mean: [doctor](../doctor.md).\n",
        "rule|condition|verdict|confidence|remedies|example|tests");
    oom_corpus();
    for (int i = 0; verdict_rule_at(i, &rule) && !rule.is_also; i++) {
        bool snapshot = strncmp(rule.name, "snapshot_", 9) == 0;
        bool own = strncmp(rule.name, "own_", 4) == 0;
        str_printf(
            out, "|`%s`|%s|%s|%s|%s|", rule.name, rule.condition, oom_kind_name(rule.kind),
            confidence_name(rule.confidence), rule.remedies);
        add_oom_examples(out, &rule);
        add_tests(
            out, rule.name,
            snapshot ? "doctor/study_test.c:study_verdicts"
            : own    ? "doctor/text_test.c:own_run"
                     : "doctor/corpus_test.c:corpus");
        str_add(out, "|\n");
    }
    str_printf(out, "\n%s", tests_note);
    str_add(
        out, "\nSecond causes, named beside the verdict:\n\n| rule | verdict | what it says "
             "|\n|---|---|---|\n");
    for (int i = 0; verdict_rule_at(i, &rule); i++)
        if (rule.is_also)
            str_printf(
                out, "| `%s` | %s | %s |\n", rule.name, oom_kind_name(rule.kind), rule.condition);
}

static void wire(struct str *out)
{
    char path[1200];
    (void)path_join(source, "src/wire/messages.def", path, sizeof path);
    if (!docgen_wire(file_text(path), out))
        fault("a message's field is not in", path, "");
}

/* ---- main ---- */

static const struct {
    const char *file;
    void (*make)(struct str *out);
} tables[] = {
    {"operators.md", operators},
    {"autocast.md", autocast},
    {"layers.md", layers},
    {"losses.md", losses},
    {"optimizers.md", optimizers},
    {"schedulers.md", schedulers},
    {"nodes.md", nodes},
    {"levers.md", levers},
    {"oom-rules.md", oom_rules},
    {"routes.md", docgen_routes},
    {"settings.md", docgen_settings},
    {"../pages/wire.md", wire}};

int main(int argc, char **argv)
{
    struct err e;
    if (argc != 3) {
        (void)fputs("usage: docgen SOURCE_FOLDER OUT_FOLDER\n", stderr);
        return 2;
    }
    source = argv[1];
    for (size_t i = 0; i < sizeof tables / sizeof *tables; i++) {
        char path[1200];
        struct str text;
        str_init(&text);
        tables[i].make(&text);
        (void)path_join(argv[2], tables[i].file, path, sizeof path);
        if (file_write(path, text.data, text.n, &e) != ST_OK)
            fault("cannot write", path, e.text);
        str_release(&text);
    }
    return faults ? 1 : 0;
}
