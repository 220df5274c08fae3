/* trace.c - frames of tracebacks, and what they say. */
#include "doctor/trace.h"

#include "base/str.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *const moment_names[MOMENT_COUNT] = {
    NULL,       "forward",     "backward",        "optimizer step", "evaluation",
    "generate", "data loader", "loading weights", "resuming",       "compiling"};

const char *moment_name(enum moment p)
{
    return moment_names[p];
}

/* ---- what a frame says ---- */

enum part { PART_FILE, PART_FUNCTION, PART_CODE };

/* In the order of their weight within one frame: the first that matches counts. */
static const struct {
    enum moment phase;
    enum part part;
    const char *needle; /* a function is compared whole, the others contain it */
} signs[] = {
    {MOMENT_BACKWARD, PART_FILE, "torch/autograd/"},
    {MOMENT_BACKWARD, PART_FUNCTION, "backward"},
    {MOMENT_BACKWARD, PART_CODE, ".backward("},
    {MOMENT_OPTIMIZER, PART_FILE, "/optim/"},
    {MOMENT_OPTIMIZER, PART_FUNCTION, "optimizer_step"},
    {MOMENT_OPTIMIZER, PART_CODE, "optimizer.step("},
    {MOMENT_OPTIMIZER, PART_CODE, "optim.step("},
    {MOMENT_OPTIMIZER, PART_CODE, "opt.step("},
    {MOMENT_OPTIMIZER, PART_CODE, "scaler.step("},
    {MOMENT_OPTIMIZER, PART_CODE, "optimizer_step("},
    {MOMENT_LOADER, PART_FILE, "torch/utils/data/"},
    {MOMENT_LOADER, PART_FUNCTION, "pin_memory"},
    {MOMENT_LOADER, PART_FUNCTION, "__getitem__"},
    {MOMENT_LOADER, PART_FUNCTION, "collate_fn"},
    {MOMENT_GENERATE, PART_FUNCTION, "generate"},
    {MOMENT_GENERATE, PART_FUNCTION, "_sample"},
    {MOMENT_GENERATE, PART_FUNCTION, "greedy_search"},
    {MOMENT_GENERATE, PART_FUNCTION, "beam_search"},
    {MOMENT_GENERATE, PART_FUNCTION, "process_images"},
    {MOMENT_GENERATE, PART_FUNCTION, "txt2img"},
    {MOMENT_GENERATE, PART_CODE, ".generate("},
    {MOMENT_EVALUATION, PART_FUNCTION, "evaluate"},
    {MOMENT_EVALUATION, PART_FUNCTION, "evaluation"},
    {MOMENT_EVALUATION, PART_FUNCTION, "eval"},
    {MOMENT_EVALUATION, PART_FUNCTION, "eval_epoch"},
    {MOMENT_EVALUATION, PART_FUNCTION, "eval_model"},
    {MOMENT_EVALUATION, PART_FUNCTION, "eval_one_epoch"},
    {MOMENT_EVALUATION, PART_FUNCTION, "evaluation_loop"},
    {MOMENT_EVALUATION, PART_FUNCTION, "evaluation_step"},
    {MOMENT_EVALUATION, PART_FUNCTION, "eval_step"},
    {MOMENT_EVALUATION, PART_FUNCTION, "prediction_loop"},
    {MOMENT_EVALUATION, PART_FUNCTION, "prediction_step"},
    {MOMENT_EVALUATION, PART_FUNCTION, "predict"},
    {MOMENT_EVALUATION, PART_FUNCTION, "validate"},
    {MOMENT_EVALUATION, PART_FUNCTION, "validation"},
    {MOMENT_EVALUATION, PART_FUNCTION, "valid"},
    {MOMENT_EVALUATION, PART_FUNCTION, "val"},
    {MOMENT_EVALUATION, PART_FUNCTION, "val_epoch"},
    {MOMENT_EVALUATION, PART_FUNCTION, "validate_epoch"},
    {MOMENT_EVALUATION, PART_FUNCTION, "validate_one_epoch"},
    {MOMENT_EVALUATION, PART_FUNCTION, "val_one_epoch"},
    {MOMENT_EVALUATION, PART_FUNCTION, "validation_step"},
    {MOMENT_EVALUATION, PART_FUNCTION, "test"},
    {MOMENT_EVALUATION, PART_FUNCTION, "test_step"},
    {MOMENT_EVALUATION, PART_FUNCTION, "test_epoch"},
    {MOMENT_EVALUATION, PART_FUNCTION, "inference"},
    {MOMENT_EVALUATION, PART_FUNCTION, "infer"},
    {MOMENT_EVALUATION, PART_FUNCTION, "nested_concat"},
    {MOMENT_EVALUATION, PART_FUNCTION, "torch_pad_and_concatenate"},
    {MOMENT_EVALUATION, PART_CODE, "evaluate("},
    {MOMENT_EVALUATION, PART_CODE, "validate("},
    {MOMENT_EVALUATION, PART_CODE, "val_loader"},
    {MOMENT_EVALUATION, PART_CODE, "valid_loader"},
    {MOMENT_EVALUATION, PART_CODE, "test_loader"},
    {MOMENT_RESUME, PART_FUNCTION, "load_checkpoint"},
    {MOMENT_RESUME, PART_FUNCTION, "_load_from_checkpoint"},
    {MOMENT_RESUME, PART_FUNCTION, "_load_optimizer_and_scheduler"},
    {MOMENT_RESUME, PART_FUNCTION, "load_state"},
    {MOMENT_RESUME, PART_FUNCTION, "resume"},
    {MOMENT_RESUME, PART_FUNCTION, "resume_checkpoint"},
    {MOMENT_RESUME, PART_CODE, "optimizer.load_state_dict("},
    {MOMENT_RESUME, PART_CODE, "torch.load("},
    {MOMENT_LOAD, PART_FUNCTION, "from_pretrained"},
    {MOMENT_LOAD, PART_FUNCTION, "load_model"},
    {MOMENT_LOAD, PART_FUNCTION, "_load_state_dict_into_meta_model"},
    {MOMENT_LOAD, PART_CODE, "from_pretrained("},
    {MOMENT_LOAD, PART_CODE, "load_state_dict("},
    {MOMENT_LOAD, PART_CODE, "model.to("},
    {MOMENT_LOAD, PART_CODE, "model.cuda("},
    {MOMENT_LOAD, PART_CODE, "t.to("},
    {MOMENT_COMPILE, PART_FUNCTION, "capture_model"},
    {MOMENT_COMPILE, PART_FUNCTION, "profile_run"},
    {MOMENT_COMPILE, PART_FUNCTION, "determine_num_available_blocks"},
    {MOMENT_COMPILE, PART_CODE, "torch.cuda.graph("},
    {MOMENT_FORWARD, PART_FUNCTION, "forward"},
    {MOMENT_FORWARD, PART_FUNCTION, "_call_impl"},
    {MOMENT_FORWARD, PART_FUNCTION, "__call__"}};

static bool installed(const char *file)
{
    static const char *const marks[] = {
        "site-packages",      "dist-packages", "/torch/",       "lib/python", "<frozen",
        "<string>",           "importlib",     "anaconda3/lib", "\\lib\\",    "\\Lib\\",
        "<__array_function__"};
    for (size_t i = 0; i < sizeof marks / sizeof *marks; i++)
        if (strstr(file, marks[i]))
            return true;
    return false;
}

/* Functions whose name begins with what they do: "test_net", "eval_epoch", "validate_one". Tests of
 * a program (test_x.py, tests/) are named so too and are no evaluation of a model. */
static bool evaluation_by_name(const struct frame *f)
{
    static const char *const heads[] = {"test_",     "eval_",       "evaluate_", "valid_",
                                        "validate_", "validation_", "val_",      "inference_",
                                        "predict_",  "infer_"};
    const char *base = f->file + strlen(f->file);
    while (base > f->file && base[-1] != '/' && base[-1] != '\\')
        base--;
    if (str_starts(base, "test_") || strstr(f->file, "/tests/") || strstr(f->file, "loader"))
        return false;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (str_starts(f->function, heads[i]) && !strstr(f->function, "loader"))
            return true;
    static const char *const files[] = {"predict", "inference", "infer",    "evaluate", "eval",
                                        "demo",    "test",      "validate", "val"};
    /* a script by its name, where it calls the model */
    bool script = strcmp(f->function, "<module>") == 0 || strcmp(f->function, "main") == 0;
    if (!script || installed(f->file) || !strstr(f->code, " = ") || !strchr(f->code, '(') ||
        strstr(f->code, ".cuda(") || strstr(f->code, ".to("))
        return false;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        size_t n = strlen(files[i]);
        if (str_starts(base, files[i]) && (strcmp(base + n, ".py") == 0 || base[n] == '_'))
            return true;
    }
    return false;
}

static enum moment phase_of(const struct frame *f)
{
    enum moment found = MOMENT_NONE;
    for (size_t i = 0; i < sizeof signs / sizeof *signs; i++) {
        bool hit = signs[i].part == PART_FUNCTION ? strcmp(f->function, signs[i].needle) == 0
                   : signs[i].part == PART_FILE   ? strstr(f->file, signs[i].needle) != NULL
                                                  : strstr(f->code, signs[i].needle) != NULL;
        if (hit && signs[i].phase > MOMENT_FORWARD)
            return signs[i].phase;
        if (hit)
            found = signs[i].phase;
    }
    return evaluation_by_name(f) ? MOMENT_EVALUATION : found;
}

static const struct {
    unsigned hint;
    const char *needle, *unless;
} code_signs[] = {
    {HINT_NO_GRAD, "with torch.no_grad()", "`"},
    {HINT_NO_GRAD, "@torch.no_grad()", "`"},
    {HINT_NO_GRAD, "with torch.inference_mode()", "`"},
    {HINT_NO_GRAD, "@torch.inference_mode()", "`"},
    {HINT_NO_GRAD, "set_grad_enabled(False", NULL},
    {HINT_CONTEXT, "torch._C._cuda_init()", NULL},
    {HINT_CONTEXT, "cuCtxCreate", NULL},
    {HINT_RETAIN_GRAPH, "retain_graph=True", NULL},
    {HINT_RETAIN_GRAPH, "retain_graph = True", NULL},
    {HINT_SUMS_LOSS, "loss += loss", ".item()"},
    {HINT_SUMS_LOSS, "losses += loss", ".item()"},
    {HINT_SUMS_LOSS, "_loss += ", ".item()"},
    {HINT_SUMS_LOSS, "loss_sum += ", ".item()"},
    {HINT_SUMS_LOSS, "total += loss", ".item()"},
    {HINT_APPENDS, ".append(loss", ".item()"},
    {HINT_APPENDS, "losses.append(", ".item()"},
    {HINT_APPENDS, ".update(loss", ".item()"},
    {HINT_APPENDS, "outputs.append(", ".cpu()"},
    {HINT_APPENDS, "preds.append(", ".cpu()"},
    {HINT_APPENDS, "predictions.append(", ".cpu()"},
    {HINT_APPENDS, "logits.append(", ".cpu()"},
    {HINT_APPENDS, "results.append(", ".cpu()"},
    {HINT_APPENDS, "features.append(", ".cpu()"},
    {HINT_KEEPS_HIDDEN, "hidden_states.append(", ".cpu()"},
    {HINT_KEEPS_HIDDEN, "attentions.append(", ".cpu()"},
    {HINT_KEEPS_HIDDEN, "attn_maps.append(", ".cpu()"},
    {HINT_KEEPS_RESULTS, "nested_concat(", ".cpu()"},
    {HINT_KEEPS_RESULTS, "torch.cat(all_", ".cpu()"},
    {HINT_KEEPS_RESULTS, "torch.cat(pred", ".cpu()"},
    {HINT_KEEPS_RESULTS, "torch.cat(outputs", ".cpu()"},
    {HINT_KEEPS_RESULTS, "_across_processes(", NULL},
    {HINT_ATTENTION, "attn_scores", NULL},
    {HINT_ATTENTION, "attention_scores", NULL},
    {HINT_ATTENTION, "attn_weights", NULL},
    {HINT_ATTENTION, "torch.baddbmm(", NULL},
    {HINT_ATTENTION, "einsum('b i d, b j d -> b i j'", NULL},
    {HINT_ATTENTION, "scaled_dot_product_attention(", NULL},
    {HINT_LOGITS, "logits = logits.float()", NULL},
    {HINT_LOGITS, "logits.float()", NULL},
    {HINT_LOGITS, "lm_head(", NULL},
    {HINT_LOGITS, "cross_entropy(", NULL},
    {HINT_CHECKPOINT, "checkpoint(", "load_"},
    {HINT_AUTOCAST, "autocast", NULL},
    {HINT_STATE_ON_DEVICE, "torch.load(", "map_location"}};

/* A needle that begins with a letter begins a word: "reprojection_losses" are no "losses". */
static bool has_sign(const char *code, const char *needle)
{
    const char *at = strstr(code, needle);
    if (!at || at == code || !isalpha((unsigned char)*needle))
        return at != NULL;
    return !isalnum((unsigned char)at[-1]) && at[-1] != '_';
}

unsigned trace_code_hints(const char *code)
{
    unsigned hints = 0;
    for (size_t i = 0; i < sizeof code_signs / sizeof *code_signs; i++)
        if (has_sign(code, code_signs[i].needle) &&
            !(code_signs[i].unless && strstr(code, code_signs[i].unless)))
            hints |= code_signs[i].hint;
    /* Without history, but on the card all the same. */
    const char *kept = strstr(code, ".append(");
    if (kept && strstr(kept, ".detach()") && !strstr(kept, ".cpu()") && !strstr(kept, ".item()") &&
        !strstr(kept, "numpy"))
        hints |= HINT_APPENDS;
    return hints;
}

static const struct {
    unsigned hint;
    const char *file;
} file_signs[] = {
    {HINT_KEEPS_RESULTS, "transformers/trainer_pt_utils.py"},
    {HINT_TRAINER, "transformers/trainer"},
    {HINT_TRAINER, "pytorch_lightning/"},
    {HINT_TRAINER, "lightning/pytorch/"},
    {HINT_NO_GRAD, "torch/utils/_contextlib.py"},
    {HINT_NO_GRAD, "torch/autograd/grad_mode.py"},
    {HINT_CHECKPOINT, "torch/utils/checkpoint.py"},
    {HINT_AUTOCAST, "torch/amp/autocast_mode.py"}};

/* The frame's place is known; called again when its code is. */
static void weigh(struct trace *t, const struct frame *f)
{
    enum moment p = phase_of(f);
    t->phases |= 1u << p;
    bool sharper = p != MOMENT_NONE && (p != MOMENT_FORWARD || t->phase <= MOMENT_FORWARD);
    /* What a backward pass or a step runs inside is still that. */
    bool within = (t->phase == MOMENT_BACKWARD || t->phase == MOMENT_OPTIMIZER) &&
                  p != MOMENT_OPTIMIZER && p != MOMENT_BACKWARD;
    if (sharper && !within)
        t->phase = p;
    t->hints |= trace_code_hints(f->code);
    for (size_t i = 0; i < sizeof file_signs / sizeof *file_signs; i++)
        if (strstr(f->file, file_signs[i].file))
            t->hints |= file_signs[i].hint;
    if (!installed(f->file))
        t->user = *f;
}

/* ---- the forms of a frame ---- */

static void begin(struct trace *t, int64_t number)
{
    *t = (struct trace){.open = true, .line = number};
}

static void frame(struct trace *t, struct frame f)
{
    t->last = f;
    t->frames++;
    t->open = true;
    weigh(t, &t->last);
}

/* '  File "x.py", line 12, in forward', also with blanks lost. */
static bool python_frame(struct trace *t, const char *s)
{
    struct frame f = {0};
    if (!str_starts(s, "File \""))
        return false;
    const char *path = s + 6, *end = strchr(path, '"');
    const char *line = end ? strstr(end, "line ") : NULL;
    if (!line)
        return false;
    str_copy_trimmed(f.file, sizeof f.file, path, (size_t)(end - path));
    f.line = (int)strtol(line + 5, NULL, 10);
    const char *in = strstr(line, ", in ");
    if (in)
        str_copy_trimmed(f.function, sizeof f.function, in + 5, strlen(in + 5));
    frame(t, f);
    return true;
}

/* IPython: "/usr/.../x.py in forward(self, x)", "<ipython-input-5-ab> in <module>",
 * "Cell In[5], line 3", "File ~/x.py:12, in f(x)". */
static bool ipython_frame(struct trace *t, const char *s)
{
    struct frame f = {0};
    bool cell = str_starts(s, "Cell In");
    bool file = !cell && str_starts(s, "File ") && strstr(s, ".py:");
    bool path = s[0] == '/' || s[0] == '~' || isalpha((unsigned char)s[0]);
    bool old = !cell && !file && t->open &&
               (str_starts(s, "<ipython-input-") || (path && strstr(s, ".py in ")));
    if (!cell && !file && !old)
        return false;
    const char *from = file ? s + 5 : s;
    const char *stop = from + strcspn(from, file ? ":" : cell ? "," : " ");
    str_copy_trimmed(f.file, sizeof f.file, from, (size_t)(stop - from));
    const char *line = strstr(s, file ? ".py:" : "line "), *in = strstr(s, " in ");
    if (line)
        f.line = (int)strtol(line + (file ? 4 : 5), NULL, 10);
    if (in)
        str_copy_trimmed(f.function, sizeof f.function, in + 4, strcspn(in + 4, "("));
    frame(t, f);
    return true;
}

/* Rich: "/home/u/x.py:12 in forward" between frames of a box. */
static bool rich_frame(struct trace *t, const char *s)
{
    struct frame f = {0};
    const char *colon = t->open ? strstr(s, ".py:") : NULL;
    if (!colon || strchr(s, '"') || (s[0] != '/' && s[0] != '~' && s[1] != ':'))
        return false;
    char *end;
    f.line = (int)strtol(colon + 4, &end, 10);
    if (strncmp(end, " in ", 4) != 0)
        return false;
    str_copy_trimmed(f.file, sizeof f.file, s, (size_t)(colon + 3 - s));
    str_copy_trimmed(f.function, sizeof f.function, end + 4, strcspn(end + 4, " "));
    frame(t, f);
    return true;
}

/* The line of code under a frame: any in Python's form, the marked one in the others. */
static bool code_line(struct trace *t, const char *s, bool indented)
{
    bool marked = str_starts(s, "--") || str_starts(s, "❱") || str_starts(s, ">");
    if (!t->open || !t->frames || (!indented && !marked))
        return false;
    if (marked) {
        s += strcspn(s, "0123456789");
        s += strspn(s, "0123456789");
    }
    if (t->last.code[0] && !marked)
        return indented; /* "^^^^" or the next line of a box */
    str_copy_trimmed(t->last.code, sizeof t->last.code, s, strlen(s));
    weigh(t, &t->last);
    return true;
}

/* Colab makes links of paths: "[/usr/.../x.py](https://localhost:8080/#) in forward(x)". */
static bool unlinked(const char *s, char *out, size_t cap)
{
    const char *end = *s == '[' ? strstr(s, "](http") : NULL;
    const char *close = end ? strchr(end, ')') : NULL;
    if (!close || (s[1] != '/' && s[1] != '<' && s[1] != '~'))
        return false;
    (void)snprintf(out, cap, "%.*s%s", (int)(end - s - 1), s + 1, close + 1);
    return true;
}

bool trace_line(struct trace *t, const char *line, int64_t number)
{
    char plain[512];
    const char *s = line + strspn(line, " \t");
    if (unlinked(s, plain, sizeof plain)) {
        s = line = plain;
        t->open = true;
    }
    size_t n = (size_t)(s - line);
    const char *mark = strchr(s, 'T');
    if (mark && strstr(mark, "Traceback (most recent call last)")) {
        begin(t, number);
        t->marked = true;
        return true;
    }
    if (!t->open &&
        (str_starts(s, "File \"") || str_starts(s, "<ipython-input-") || str_starts(s, "Cell In")))
        begin(t, number);
    if (python_frame(t, s) || ipython_frame(t, s) || rich_frame(t, s))
        return true;
    if (code_line(t, s, n >= 2 || !s[0]))
        return true;
    t->open = false;
    return false;
}
