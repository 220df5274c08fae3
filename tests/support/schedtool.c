/* schedtool.c - schedules and optimizer states for the tests against PyTorch.
 *
 *     schedtool schedule < REQUESTS
 *         one JSON object a line: {"scheduler": node parameters, "optimizer": node parameters,
 *         "steps": n, "metrics": [per step], "restore": state, "forward": n}
 *         answer: {"lrs": [n + 1 rates as text], "momenta": [...], "state", "class", "differs"} or
 *         {"error"}
 *     schedtool optim IN.pt OUT.pt REQUEST
 *         reads a PyTorch optimizer state ("optimizer" of the file) and writes it again, as
 *         {"optimizer": ..., "scheduler": ...}; REQUEST: {"optimizer": node parameters,
 *         "params": [{"name", "shape"}], "saved_names": [...], "scheduler": node parameters,
 *         "forward": steps of the schedule}
 */
#include "base/mem.h"
#include "ir/optim_state.h"
#include "train/optim_state_dict.h"
#include "train/schedule.h"
#include "train/schedule_dict.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void add_number(json_t *list, double x)
{
    char text[40];
    (void)snprintf(text, sizeof text, "%.17g", x);
    (void)json_array_append_new(list, json_string(text));
}

static enum status
make_schedule(const json_t *request, struct optim_spec *optim, struct schedule **s, struct err *e)
{
    TRY(optim_spec_make(json_object_get(request, "optimizer"), optim, e));
    TRY(schedule_new(json_object_get(request, "scheduler"), optim, s, e));
    schedule_prepare_optim(*s, optim);
    return ST_OK;
}

static enum status
run_schedule(const json_t *request, struct schedule *s, json_t *answer, struct err *e)
{
    const json_t *metrics = json_object_get(request, "metrics");
    const json_t *restore = json_object_get(request, "restore");
    json_t *lrs = json_array(), *momenta = json_array();
    json_put(answer, "lrs", lrs);
    json_put(answer, "momenta", momenta);
    const char *differs = NULL;
    if (restore)
        TRY(schedule_restore(s, restore, &differs, e));
    json_put_str(answer, "differs", differs);
    if (!schedule_fast_forward(s, json_get_i64(request, "forward", 0)) &&
        json_object_get(request, "forward"))
        return err_set(e, ST_INVALID, "cannot be moved forward");
    int64_t steps = json_get_i64(request, "steps", 0);
    for (int64_t i = 0;; i++) {
        double momentum = (double)NAN;
        add_number(lrs, schedule_lr(s));
        if (schedule_momentum(s, &momentum))
            add_number(momenta, momentum);
        if (i == steps)
            break;
        const json_t *metric = json_array_get(metrics, (size_t)i);
        TRY(schedule_step(s, json_is_number(metric) ? json_number_value(metric) : (double)NAN, e));
    }
    json_put(answer, "state", schedule_state(s));
    json_put_str(answer, "class", schedule_class(s));
    return ST_OK;
}

static int schedules(void)
{
    static char line[1 << 20];
    while (fgets(line, sizeof line, stdin)) {
        json_t *request, *answer = json_object();
        struct err e = {0};
        struct optim_spec optim;
        struct schedule *s = NULL;
        if (json_parse(line, strlen(line), "request", &request, &e) != ST_OK)
            return 1;
        if (make_schedule(request, &optim, &s, &e) != ST_OK ||
            run_schedule(request, s, answer, &e) != ST_OK)
            json_put_str(answer, "error", e.text);
        char *text = json_text(answer, false);
        (void)puts(text);
        (void)fflush(stdout);
        mem_free(text);
        schedule_free(s);
        json_decref(answer);
        json_decref(request);
    }
    return 0;
}

/* ---- optimizer states ---- */

struct states {
    struct optim_tensor *list;
    int n;
    const char **saved_names;
    int n_saved;
};

static struct shape shape_from(const json_t *dims)
{
    struct shape s = {.rank = (int)json_array_size(dims)};
    for (int d = 0; d < s.rank; d++)
        s.dim[d] = json_integer_value(json_array_get(dims, (size_t)d));
    return s;
}

static struct states
states_of(struct arena *m, const json_t *request, const struct optim_spec *spec)
{
    const json_t *params = json_object_get(request, "params");
    const json_t *names = json_object_get(request, "saved_names");
    enum { STATES_MAX = 8 };
    int n = (int)json_array_size(params);
    struct states s = {.list = ARENA_ARRAY(m, struct optim_tensor, n * STATES_MAX + 1)};
    for (int i = 0; i < n; i++) {
        const json_t *p = json_array_get(params, (size_t)i);
        struct shape own = shape_from(json_object_get(p, "shape"));
        struct optim_attr attr =
            optim_attr_for(&spec->attr, &own, DT_F32, json_get_str(p, "name", "?"));
        for (int k = 0; k < optim_state_count(&attr); k++) {
            struct shape shape = optim_state_shape(&attr, k, &own);
            enum dtype type = optim_state_dtype(&attr, k);
            s.list[s.n++] = (struct optim_tensor){
                .param = i,
                .state = k,
                .param_name = json_get_str(p, "name", "?"),
                .dtype = type,
                .shape = shape,
                .data = arena_alloc(m, (size_t)shape_count(&shape) * (size_t)dtype_size(type)),
                .key = optim_state_name(&attr, k)};
        }
    }
    if (names) {
        s.n_saved = (int)json_array_size(names);
        s.saved_names = ARENA_ARRAY(m, const char *, s.n_saved + 1);
        for (int i = 0; i < s.n_saved; i++)
            s.saved_names[i] = json_string_value(json_array_get(names, (size_t)i));
    }
    return s;
}

/* Only what a scheduler's state has. */
static struct pt_value *tree_of(struct arena *m, const json_t *j)
{
    if (json_is_object(j)) {
        struct pt_value *d = pt_dict(m, PT_DICT_PLAIN);
        for (void *i = json_object_iter((json_t *)(uintptr_t)j); i;
             i = json_object_iter_next((json_t *)(uintptr_t)j, i))
            pt_put(m, d, json_object_iter_key(i), tree_of(m, json_object_iter_value(i)));
        return d;
    }
    if (json_is_array(j)) {
        struct pt_value *l = pt_list(m);
        for (size_t i = 0; i < json_array_size(j); i++)
            pt_add(m, l, tree_of(m, json_array_get(j, i)));
        return l;
    }
    if (json_is_string(j) && strcmp(json_string_value(j), "Infinity") == 0)
        return pt_float(m, (double)INFINITY);
    return json_is_string(j)    ? pt_string(m, json_string_value(j))
           : json_is_integer(j) ? pt_int(m, json_integer_value(j))
           : json_is_real(j)    ? pt_float(m, json_real_value(j))
           : json_is_boolean(j) ? pt_bool(m, json_is_true(j))
                                : pt_none(m);
}

static enum status
put_schedule(struct arena *m, const json_t *request, struct pt_value *root, struct err *e)
{
    struct optim_spec optim;
    struct schedule *s;
    TRY(make_schedule(request, &optim, &s, e));
    if (!schedule_fast_forward(s, json_get_i64(request, "forward", 0))) {
        schedule_free(s);
        return err_set(e, ST_INVALID, "cannot be moved forward");
    }
    json_t *state = schedule_state(s);
    struct pt_value *tree = tree_of(m, state);
    schedule_complete_dicts(m, s, tree, root->dict.data[0].value);
    pt_put(m, root, "scheduler", tree);
    json_decref(state);
    schedule_free(s);
    return ST_OK;
}

static enum status
copy_optim(struct ptfile *f, const char *out, const json_t *request, struct arena *m, struct err *e)
{
    struct optim_spec spec;
    int64_t steps = 0;
    double lr;
    TRY(optim_spec_make(json_object_get(request, "optimizer"), &spec, e));
    bool has_schedule = json_object_get(request, "scheduler") != NULL;
    if (has_schedule) {
        struct schedule *s;
        TRY(make_schedule(request, &spec, &s, e));
        schedule_free(s);
    }
    struct states s = states_of(m, request, &spec);
    TRY(optim_state_dict_read(
        f, pt_get(ptfile_root(f), "optimizer"), s.saved_names, s.n_saved, &spec, s.list, s.n,
        &steps, &lr, e));
    struct pt_value *root = pt_dict(m, PT_DICT_PLAIN);
    int n_params = (int)json_array_size(json_object_get(request, "params"));
    pt_put(
        m, root, "optimizer",
        optim_state_dict_make(m, &spec, n_params, s.list, s.n, steps, lr, has_schedule));
    if (has_schedule)
        TRY(put_schedule(m, request, root, e));
    (void)printf("{\"steps\": %lld, \"lr\": %.17g}\n", (long long)steps, lr);
    return ptfile_write(out, root, e);
}

static int optim(const char *in, const char *out, const char *text)
{
    struct err e = {0};
    json_t *request;
    struct ptfile *f = NULL;
    struct arena m;
    arena_init(&m);
    enum status st = json_parse(text, strlen(text), "request", &request, &e);
    if (st != ST_OK)
        return 1;
    st = ptfile_open(in, &f, &e);
    if (st == ST_OK)
        st = copy_optim(f, out, request, &m, &e);
    if (st != ST_OK)
        (void)fprintf(stderr, "%s\n", e.text);
    ptfile_close(f);
    arena_release(&m);
    json_decref(request);
    return st != ST_OK;
}

int main(int argc, char **argv)
{
    if (argc == 2 && strcmp(argv[1], "schedule") == 0)
        return schedules();
    if (argc == 5 && strcmp(argv[1], "optim") == 0)
        return optim(argv[2], argv[3], argv[4]);
    (void)fputs("usage: schedtool schedule | schedtool optim IN OUT REQUEST\n", stderr);
    return 2;
}
