/* optim_state_dict_test.c - optimizer states to a file and back, matched by name or place. */
#include "train/optim_state_dict.h"

#include "test.h"

#include <stdio.h>
#include <string.h>

static struct optim_spec momentum_sgd(void)
{
    return (struct optim_spec){.attr = {.kind = OPTIM_SGD, .momentum = 0.9}, .lr = 0.1};
}

static struct optim_tensor tensor(int param, const char *name, struct shape shape, float *data)
{
    return (struct optim_tensor){.param = param, .param_name = name, .shape = shape, .data = data};
}

/* Writes the state and opens it again. */
static struct ptfile *
through_file(const struct optim_spec *s, int n_params, const struct optim_tensor *t, int n)
{
    static char path[512];
    struct arena m;
    struct err e;
    struct ptfile *f;
    arena_init(&m);
    (void)snprintf(path, sizeof path, "%s/optim.pt", test_dir());
    struct pt_value *dict = optim_state_dict_make(&m, s, n_params, t, n, 3, 0.05, false);
    CHECK_OK(ptfile_write(path, dict, &e), &e);
    arena_release(&m);
    CHECK_OK(ptfile_open(path, &f, &e), &e);
    return f;
}

TEST(
    optim_state_by_name,
    "case-T43: after a change of order each state follows its parameter's name")
{
    struct optim_spec s = momentum_sgd();
    float a = 1, b = 2, c = 0, d = 0;
    struct optim_tensor saved[] = {tensor(0, "a", SHAPE(1), &a), tensor(1, "b", SHAPE(1), &b)};
    struct optim_tensor here[] = {tensor(0, "b", SHAPE(1), &c), tensor(1, "a", SHAPE(1), &d)};
    struct ptfile *f = through_file(&s, 2, saved, 2);
    int64_t steps = 0;
    double lr;
    struct err e;
    CHECK_OK(
        optim_state_dict_read(
            f, ptfile_root(f), (const char *const[]){"a", "b"}, 2, &s, here, 2, &steps, &lr, &e),
        &e);
    CHECK(c == 2 && d == 1);
    CHECK(lr == 0.05);
    CHECK_EQ(steps, 1); /* SGD's state has no count */
    /* Gradient 0, lr 0.1: a moves by -0.09, b by -0.18. */
    CHECK_NEAR(-0.1 * 0.9 * (double)d, -0.09, 1e-12);
    CHECK_NEAR(-0.1 * 0.9 * (double)c, -0.18, 1e-12);
    ptfile_close(f);
}

TEST(optim_state_names_missing, "case-T43: a parameter that the file does not know is named")
{
    struct optim_spec s = momentum_sgd();
    float a = 1, c = 0;
    struct optim_tensor saved[] = {tensor(0, "a", SHAPE(1), &a)};
    struct optim_tensor here[] = {tensor(0, "frozen.weight", SHAPE(1), &c)};
    struct ptfile *f = through_file(&s, 1, saved, 1);
    int64_t steps = 7;
    double lr;
    struct err e = {0};
    CHECK_EQ(
        optim_state_dict_read(
            f, ptfile_root(f), (const char *const[]){"a"}, 1, &s, here, 1, &steps, &lr, &e),
        ST_INVALID);
    CHECK(strstr(e.text, "frozen.weight"));
    CHECK_EQ(steps, 7);
    /* A list of names of another length is a damaged file. */
    CHECK_EQ(
        optim_state_dict_read(
            f, ptfile_root(f), (const char *const[]){"a", "b"}, 2, &s, here, 1, &steps, &lr, &e),
        ST_CORRUPT);
    ptfile_close(f);
}

TEST(
    optim_state_by_place,
    "without names another shape or number of parameters is refused, and named")
{
    struct optim_spec s = momentum_sgd();
    float a[2] = {1, 2}, b[3] = {3, 4, 5}, c[3], d[2];
    struct optim_tensor saved[] = {tensor(0, "a", SHAPE(2), a), tensor(1, "b", SHAPE(3), b)};
    struct optim_tensor turned[] = {tensor(0, "b", SHAPE(3), c), tensor(1, "a", SHAPE(2), d)};
    struct ptfile *f = through_file(&s, 2, saved, 2);
    int64_t steps;
    double lr;
    struct err e = {0};
    CHECK_EQ(
        optim_state_dict_read(f, ptfile_root(f), NULL, 0, &s, turned, 2, &steps, &lr, &e),
        ST_INVALID);
    CHECK(strstr(e.text, "\"b\"") && strstr(e.text, "momentum_buffer") && strstr(e.text, "[2]"));
    CHECK_EQ(
        optim_state_dict_read(f, ptfile_root(f), NULL, 0, &s, saved, 1, &steps, &lr, &e),
        ST_INVALID);
    memset(a, 0, sizeof a);
    CHECK_OK(optim_state_dict_read(f, ptfile_root(f), NULL, 0, &s, saved, 2, &steps, &lr, &e), &e);
    CHECK(a[0] == 1 && a[1] == 2 && b[2] == 5);
    ptfile_close(f);
}

TEST(optim_state_other_kind, "the state of another optimizer is refused, naming parameter and key")
{
    struct optim_spec s = momentum_sgd(), adam = {.attr = {.kind = OPTIM_ADAM}, .lr = 0.1};
    float a = 1;
    struct optim_tensor t[] = {tensor(0, "a", SHAPE(1), &a)};
    struct ptfile *f = through_file(&s, 1, t, 1);
    int64_t steps;
    double lr;
    struct err e = {0};
    CHECK_EQ(
        optim_state_dict_read(f, ptfile_root(f), NULL, 0, &adam, t, 1, &steps, &lr, &e),
        ST_INVALID);
    CHECK(strstr(e.text, "\"a\"") && strstr(e.text, "exp_avg") && e.hint[0]);
    ptfile_close(f);
}

TEST(
    optim_state_group,
    "a group has an initial_lr where there is a schedule, and one id a parameter")
{
    struct optim_spec s = momentum_sgd();
    struct arena m;
    arena_init(&m);
    for (int schedule = 0; schedule < 2; schedule++) {
        const struct pt_value *dict =
            optim_state_dict_make(&m, &s, 3, NULL, 0, 0, 0.05, schedule != 0);
        const struct pt_value *group = pt_get(dict, "param_groups")->seq.data[0];
        double lr = 0, initial = 0;
        CHECK(pt_to_float(pt_get(group, "lr"), &lr) && lr == 0.05);
        CHECK_EQ(pt_to_float(pt_get(group, "initial_lr"), &initial), schedule);
        CHECK(!schedule || initial == 0.1);
        CHECK_EQ(pt_get(group, "params")->seq.n, 3);
        CHECK_EQ(pt_get(dict, "state")->dict.n, 0);
    }
    arena_release(&m);
}
