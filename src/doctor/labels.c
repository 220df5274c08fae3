/* labels.c - marks of frames, and from them what a stack is. */
#include "doctor/labels.h"

#include <string.h>

enum part { PART_FILE, PART_NAME, PART_CXX };
enum how { HOW_CONTAINS, HOW_IS, HOW_BEGINS, HOW_ENDS };

static const struct {
    enum frame_mark mark;
    enum part part;
    enum how how;
    const char *text;
} signs[] = {
#define X(mark, part, how, text) {MARK_##mark, PART_##part, HOW_##how, text},
#include "doctor/frame_signs.def"
#undef X
};

static bool matches(const char *s, enum how how, const char *text)
{
    switch (how) {
    case HOW_CONTAINS:
        return strstr(s, text) != NULL;
    case HOW_IS:
        return strcmp(s, text) == 0;
    case HOW_BEGINS:
        return str_starts(s, text);
    case HOW_ENDS:
        return str_ends(s, text);
    }
    return false;
}

static bool is_python(const char *file)
{
    return str_ends(file, ".py") || strstr(file, "ipython-input") || strstr(file, "ipykernel") ||
           (file[0] == '<' && file[1] != '\0');
}

static bool is_package(const char *file)
{
    return strstr(file, "site-packages/") || strstr(file, "dist-packages/") ||
           strstr(file, "site-packages\\") || strstr(file, "/lib/python3") ||
           strstr(file, "/lib/python2") || strstr(file, "\\lib\\") || strstr(file, "/torch/nn/") ||
           strstr(file, "/torch/utils/") || strstr(file, "/torch/optim/") ||
           strstr(file, "/torch/autograd/") || strstr(file, "/torch/_") ||
           str_starts(file, "torch/") || str_starts(file, "<frozen") ||
           str_starts(file, "<string") || str_starts(file, "<eval_with_key") ||
           str_starts(file, "<unknown");
}

static uint32_t marks_of(const struct snapshot *s, const struct snap_frame *f)
{
    const char *file = snap_text(s, f->file), *name = snap_text(s, f->name);
    uint32_t marks = 0;
    bool python = is_python(file);
    if (python)
        marks |= MARK(PYTHON);
    if (is_package(file))
        marks |= MARK(PACKAGE);
    if (strstr(file, "/torch/") || str_starts(file, "torch/"))
        marks |= MARK(TORCH);
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        const char *part = signs[i].part == PART_FILE ? file : name;
        if ((signs[i].part == PART_CXX) != python && matches(part, signs[i].how, signs[i].text))
            marks |= 1u << signs[i].mark;
    }
    /* An optimizer of the user's own: "step" in a file that is called after it. */
    if ((marks & MARK(STEP)) && (marks & MARK(OPTIM_FILE)))
        marks |= MARK(OPTIMIZER);
    if (marks & MARK(CLEARS))
        marks &= ~MARK(OPTIMIZER);
    return marks;
}

static enum moment phase_of(uint32_t marks)
{
    if (marks & MARK(BACKWARD))
        return MOMENT_BACKWARD;
    if ((marks & MARK(OPTIMIZER)) && !(marks & MARK(CLEARS)))
        return MOMENT_OPTIMIZER;
    if (marks & MARK(LOADER))
        return MOMENT_LOADER;
    if (marks & MARK(COMPILE))
        return MOMENT_COMPILE;
    if (marks & MARK(EVALUATION))
        return MOMENT_EVALUATION;
    if (marks & MARK(GENERATE))
        return MOMENT_GENERATE;
    if ((marks & MARK(BUILD)) && !(marks & MARK(MODULE)))
        return MOMENT_LOAD;
    if (marks & (MARK(MODULE) | MARK(FORWARD) | MARK(LOSS)))
        return MOMENT_FORWARD;
    return MOMENT_NONE;
}

/* One stack: innermost frame first. */
static void label_stack(const struct labels *l, uint32_t stack, struct stack_label *out)
{
    const struct snap_stack *k = &l->s->stacks[stack];
    const uint32_t *ids = snap_stack_frames(l->s, stack);
    uint32_t library = LABEL_NONE, torch = LABEL_NONE;
    bool python = false;
    *out = (struct stack_label){.frame = LABEL_NONE, .outer = LABEL_NONE, .op = LABEL_NONE};
    for (uint32_t i = 0; i < k->n; i++) {
        uint32_t m = l->marks[ids[i]];
        out->marks |= m;
        if (!python && (m & (MARK(OP) | MARK(GRAD_FN))))
            out->op = ids[i];
        if (!(m & MARK(PYTHON)))
            continue;
        python = true;
        if (!(m & MARK(PACKAGE))) {
            out->outer = ids[i];
            if (out->frame == LABEL_NONE)
                out->frame = ids[i];
        } else if (library == LABEL_NONE && !(m & MARK(TORCH))) {
            library = ids[i];
        } else if (torch == LABEL_NONE) {
            torch = ids[i];
        }
    }
    out->own = out->frame != LABEL_NONE;
    if (!out->own)
        out->frame = library;
    (void)torch;
    out->phase = (uint8_t)phase_of(out->marks);
}

/* ---- groups ---- */

struct table {
    uint32_t *slots; /* group + 1; 0: empty */
    size_t cap;
};

static uint64_t key_of(const struct stack_label *x)
{
    uint32_t place = x->frame != LABEL_NONE ? x->frame : x->op;
    uint64_t what = x->frame != LABEL_NONE ? 0 : x->op != LABEL_NONE ? 1 : 2;
    return (uint64_t)place << 16 | (uint64_t)x->phase << 8 | what << 1 |
           ((x->marks & MARK(LOSS)) != 0);
}

static uint64_t key_of_group(const struct label_group *g)
{
    struct stack_label x = {
        .frame = g->frame, .op = g->op, .phase = g->phase, .marks = g->loss ? MARK(LOSS) : 0};
    return key_of(&x);
}

static uint32_t group_of(struct labels *l, struct table *t, uint32_t stack)
{
    const struct stack_label *x = &l->of[stack];
    uint64_t key = key_of(x);
    size_t at = (size_t)(key * 0x9e3779b97f4a7c15u >> 20) & (t->cap - 1);
    while (t->slots[at]) {
        if (key_of_group(&l->groups[t->slots[at] - 1]) == key)
            return t->slots[at] - 1;
        at = (at + 1) & (t->cap - 1);
    }
    l->groups[l->groups_n] = (struct label_group){
        .stack = stack,
        .frame = x->frame,
        .op = x->frame == LABEL_NONE ? x->op : LABEL_NONE,
        .phase = x->phase,
        .loss = (x->marks & MARK(LOSS)) != 0};
    t->slots[at] = ++l->groups_n;
    return l->groups_n - 1;
}

/* Snapshots of our own say the node: that is a place of its own, whatever the stack. */
static void group_nodes(struct labels *l)
{
    const struct snapshot *s = l->s;
    for (uint32_t i = 0; i < s->origins_n; i++) {
        uint32_t node = s->origins[i].node;
        if (snap_text(s, node)[0] == '\0')
            continue;
        if (!l->of_node)
            l->of_node = mem_alloc(((size_t)s->texts_n + 1) * sizeof *l->of_node);
        if (l->of_node[node])
            continue;
        l->groups[l->groups_n] =
            (struct label_group){.node = node, .frame = LABEL_NONE, .op = LABEL_NONE};
        l->of_node[node] = ++l->groups_n;
    }
}

void labels_init(struct labels *l, const struct snapshot *s)
{
    struct table t = {.cap = 64};
    *l = (struct labels){.s = s};
    l->marks = mem_alloc(((size_t)s->frames_n + 1) * sizeof *l->marks);
    l->of = mem_alloc(((size_t)s->stacks_n + 1) * sizeof *l->of);
    l->groups = mem_alloc(((size_t)s->stacks_n + s->origins_n + 1) * sizeof *l->groups);
    for (uint32_t i = 0; i < s->frames_n; i++)
        l->marks[i] = marks_of(s, &s->frames[i]);
    for (uint32_t i = 0; i < s->stacks_n; i++) {
        label_stack(l, i, &l->of[i]);
        l->trains =
            l->trains || l->of[i].phase == MOMENT_BACKWARD || l->of[i].phase == MOMENT_OPTIMIZER;
    }
    /* Threads of the backward pass have no Python frames: where only those are recorded, and the
     * program trains, a stack without any is one of theirs. */
    if (s->has_stacks && l->trains)
        l->of[0].phase = MOMENT_BACKWARD;
    while (t.cap < 2 * ((size_t)s->stacks_n + 1))
        t.cap *= 2;
    t.slots = mem_alloc(t.cap * sizeof *t.slots);
    for (uint32_t i = 0; i < s->stacks_n; i++)
        l->of[i].group = group_of(l, &t, i);
    mem_free(t.slots);
    group_nodes(l);
}

void labels_release(struct labels *l)
{
    mem_free(l->marks);
    mem_free(l->of);
    mem_free(l->groups);
    mem_free(l->of_node);
    *l = (struct labels){0};
}

/* ---- texts ---- */

void label_place(const struct snapshot *s, uint32_t frame, struct str *out)
{
    if (frame == LABEL_NONE) {
        str_add(out, "(no stack)");
        return;
    }
    const struct snap_frame *f = &s->frames[frame];
    const char *file = snap_text(s, f->file), *at = file + strlen(file);
    for (int parts = 0; at > file; at--)
        if ((at[-1] == '/' || at[-1] == '\\') && ++parts == 2)
            break;
    str_printf(out, "%s:%u %s", at, f->line, snap_text(s, f->name));
}

void label_op(const struct snapshot *s, uint32_t op, struct str *out)
{
    static const char *const prefixes[] = {
        "at::_ops::", "torch::autograd::generated::details::", "torch::autograd::generated::"};
    if (op == LABEL_NONE)
        return;
    const char *name = snap_text(s, s->frames[op].name);
    for (size_t i = 0; i < sizeof prefixes / sizeof *prefixes; i++)
        if (str_starts(name, prefixes[i])) {
            name += strlen(prefixes[i]);
            break;
        }
    str_add_n(out, name, strcspn(name, ":(<"));
}

void label_group_text(const struct labels *l, uint32_t group, struct str *out)
{
    const struct label_group *g = &l->groups[group];
    if (g->node)
        str_add(out, snap_text(l->s, g->node));
    else if (g->frame == LABEL_NONE && g->op != LABEL_NONE)
        label_op(l->s, g->op, out);
    else
        label_place(l->s, g->frame, out);
}

const char *label_phase(uint8_t phase, bool loss)
{
    const char *name = moment_name((enum moment)phase);
    if (loss && (phase == MOMENT_FORWARD || phase == MOMENT_NONE))
        return "loss";
    return name ? name : "";
}
