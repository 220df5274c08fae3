/* spec_test.c - what the Optimizer and Loss nodes say, and what is refused. */
#include "train/spec.h"

#include "test.h"

#include <string.h>

static json_t *parse(const char *text)
{
    struct err e;
    json_t *v;
    CHECK_OK(json_parse(text, strlen(text), "test", &v, &e), &e);
    return v;
}

static struct optim_spec optim(const char *node)
{
    struct optim_spec s;
    struct err e;
    json_t *params = parse(node);
    CHECK_OK(optim_spec_make(params, &s, &e), &e);
    json_decref(params);
    return s;
}

static void optim_refused(const char *node, const char *words)
{
    struct optim_spec s;
    struct err e = {0};
    json_t *params = parse(node);
    CHECK_EQ(optim_spec_make(params, &s, &e), ST_INVALID);
    if (!strstr(e.text, words))
        test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", e.text, words);
    json_decref(params);
}

TEST(optim_defaults, "each optimizer has the values of PyTorch 1.13 that the node does not set")
{
    struct optim_attr a = optim("{\"type\": \"RMSprop\"}").attr;
    CHECK(a.alpha == 0.99 && a.eps == 1e-8 && !a.centered && a.momentum == 0);
    a = optim("{\"type\": \"Adagrad\"}").attr;
    CHECK(a.eps == 1e-10 && a.lr_decay == 0);
    a = optim("{\"type\": \"NAdam\"}").attr;
    CHECK(a.momentum_decay == 4e-3 && a.beta1 == 0.9 && a.beta2 == 0.999 && a.eps == 1e-8);
    a = optim("{\"type\": \"Rprop\"}").attr;
    CHECK(a.eta_minus == 0.5 && a.eta_plus == 1.2 && a.step_min == 1e-6 && a.step_max == 50);
    a = optim("{\"type\": \"ASGD\"}").attr;
    CHECK(a.lambd == 1e-4 && a.alpha == 0.75 && a.t0 == 1e6);
    a = optim("{\"type\": \"AdamW\"}").attr;
    CHECK(a.weight_decay == 0); /* the node's default, not the class's 0.01 */
    struct optim_spec s = optim("{}");
    CHECK(s.attr.kind == OPTIM_ADAM && s.lr == 0.001);
}

TEST(optim_values, "the node's values arrive")
{
    struct optim_spec s =
        optim("{\"type\": \"AdamW\", \"lr\": 0.5, \"weight_decay\": 0.1, \"betas\": \"0.8, 0.95\","
              " \"eps\": 1e-6, \"amsgrad\": true, \"momentum\": 0.0, \"nesterov\": false}");
    CHECK(s.lr == 0.5 && s.attr.weight_decay == 0.1 && s.attr.beta1 == 0.8);
    CHECK(s.attr.beta2 == 0.95 && s.attr.eps == 1e-6 && s.attr.amsgrad);
    s = optim("{\"type\": \"SGD\", \"momentum\": 0.9, \"nesterov\": true}");
    CHECK(s.attr.momentum == 0.9 && s.attr.nesterov && s.attr.beta1 == 0);
    s = optim("{\"type\": \"Adam\", \"betas\": \"(0.5,0.75)\"}");
    CHECK(s.attr.beta1 == 0.5 && s.attr.beta2 == 0.75);
}

TEST(optim_not_accepted, "a changed parameter on an optimizer without it is refused with its value")
{
    optim_refused(
        "{\"type\": \"Adam\", \"momentum\": 0.9}",
        "Optimizer 'Adam' does not accept momentum; got 0.9. ");
    optim_refused(
        "{\"type\": \"Rprop\", \"weight_decay\": 0.01}",
        "Optimizer 'Rprop' does not accept weight_decay; got 0.01. ");
    optim_refused(
        "{\"type\": \"SGD\", \"betas\": \"0.9, 0.99\"}",
        "Optimizer 'SGD' does not accept betas; got '0.9, 0.99'. ");
    optim_refused(
        "{\"type\": \"RAdam\", \"amsgrad\": true}",
        "Optimizer 'RAdam' does not accept amsgrad; got true. ");
    optim_refused("{\"type\": \"Adagrad\", \"eps\": 1e-6}", "Adagrad' does not accept eps");
    optim_refused("{\"type\": \"RMSprop\", \"nesterov\": true}", "not accept nesterov");
    optim_refused("{\"type\": \"Adam\", \"dampening\": 0.5}", "not accept dampening");
    /* The defaults, said aloud, are fine. */
    (void)optim(
        "{\"type\": \"Rprop\", \"lr\": 0.01, \"weight_decay\": 0.0, \"momentum\": 0.0,"
        " \"betas\": \"0.9, 0.999\", \"eps\": 1e-08, \"amsgrad\": false, \"nesterov\": false,"
        " \"dampening\": 0.0}");
}

TEST(optim_ranges, "PyTorch's range errors name the parameter; NaN and infinities are refused")
{
    optim_refused("{\"type\": \"SGD\", \"lr\": -1}", "\"lr\"");
    optim_refused("{\"type\": \"SGD\", \"lr\": \"NaN\"}", "\"lr\"");
    optim_refused("{\"type\": \"SGD\", \"lr\": \"Infinity\"}", "\"lr\"");
    optim_refused("{\"type\": \"SGD\", \"lr\": true}", "\"lr\"");
    optim_refused("{\"type\": \"SGD\", \"momentum\": -0.1}", "\"momentum\"");
    optim_refused("{\"type\": \"SGD\", \"weight_decay\": -0.1}", "\"weight_decay\"");
    optim_refused("{\"type\": \"SGD\", \"nesterov\": true}", "\"nesterov\"");
    optim_refused(
        "{\"type\": \"SGD\", \"nesterov\": true, \"momentum\": 0.9, \"dampening\": 0.1}",
        "\"dampening\"");
    optim_refused("{\"type\": \"Adam\", \"betas\": \"1, 0.9\"}", "index 0");
    optim_refused("{\"type\": \"Adam\", \"betas\": \"0.9, -0.1\"}", "index 1");
    optim_refused("{\"type\": \"Adam\", \"betas\": \"0.9\"}", "\"betas\"");
    optim_refused("{\"type\": \"Adam\", \"betas\": \"0.9, x\"}", "\"betas\"");
    optim_refused("{\"type\": \"Adam\", \"betas\": \"\"}", "\"betas\"");
    optim_refused("{\"type\": \"Adam\", \"betas\": \"0.9, nan\"}", "\"betas\"");
    optim_refused("{\"type\": \"Adam\", \"eps\": -1}", "\"eps\"");
    optim_refused("{\"type\": \"Adam\", \"amsgrad\": 1}", "\"amsgrad\"");
    optim_refused("{\"type\": \"Adams\"}", "Adams");
}

TEST(optim_initial, "states start as PyTorch's do")
{
    struct optim_spec s = optim("{\"type\": \"Rprop\", \"lr\": 0.25}");
    CHECK(optim_state_initial(&s, 0) == 0 && optim_state_initial(&s, 1) == 0.25);
    s = optim("{\"type\": \"NAdam\"}");
    CHECK(optim_state_initial(&s, 1) == 0 && optim_state_initial(&s, 2) == 1);
    s = optim("{\"type\": \"ASGD\", \"lr\": 0.25}");
    CHECK(optim_state_initial(&s, 0) == 0 && optim_state_initial(&s, 1) == 0.25);
    CHECK(optim_state_initial(&s, 2) == 1 && optim_state_initial(&s, 7) == 0);
}

static struct loss_spec loss(const char *node)
{
    struct loss_spec s;
    struct err e;
    json_t *params = parse(node);
    CHECK_OK(loss_spec_make(params, &s, &e), &e);
    json_decref(params);
    return s;
}

static void loss_refused(const char *node, const char *words)
{
    struct loss_spec s;
    struct err e = {0};
    json_t *params = parse(node);
    CHECK_EQ(loss_spec_make(params, &s, &e), ST_INVALID);
    if (!strstr(e.text, words))
        test_fail(__FILE__, __LINE__, "\"%s\" does not say \"%s\"", e.text, words);
    json_decref(params);
}

TEST(loss_types, "every loss exists under PyTorch's names")
{
    for (int i = 0; i < LOSS_TYPE_COUNT; i++) {
        json_t *params = json_object();
        struct loss_spec s;
        struct err e;
        json_put_str(params, "type", loss_type_name((enum loss_type)i));
        CHECK_OK(loss_spec_make(params, &s, &e), &e);
        CHECK_EQ(s.type, i);
        CHECK(s.attr.reduction == REDUCE_MEAN && s.attr.ignore_index == -100 && s.attr.beta == 1);
        CHECK_EQ(loss_has_classes(s.type), i == LOSS_TYPE_CROSS_ENTROPY || i == LOSS_TYPE_NLL);
        json_decref(params);
        loss_spec_release(&s);
    }
    CHECK_EQ(loss("{\"type\": \"HuberLoss\"}").attr.kind, LOSS_HUBER);
    CHECK_EQ(loss("{\"type\": \"KLDivLoss\"}").attr.kind, LOSS_KLDIV);
}

TEST(loss_values, "weights, smoothing, reduction and ignored labels arrive")
{
    struct loss_spec s =
        loss("{\"type\": \"CrossEntropyLoss\", \"label_smoothing\": 0.1, \"reduction\": \"sum\","
             " \"weight\": \"0.2, 0.8,1e0\", \"ignore_index\": -1, \"pos_weight\": \"\"}");
    CHECK(s.attr.label_smoothing == 0.1 && s.attr.reduction == REDUCE_SUM);
    CHECK_EQ(s.attr.ignore_index, -1);
    CHECK_EQ(s.weight_n, 3);
    CHECK(s.weight[0] == 0.2 && s.weight[1] == 0.8 && s.weight[2] == 1);
    CHECK(!s.pos_weight && s.pos_weight_n == 0);
    loss_spec_release(&s);
    s = loss("{\"type\": \"BCEWithLogitsLoss\", \"pos_weight\": \" 3 \", \"weight\": \"\"}");
    CHECK(!s.weight && s.pos_weight_n == 1 && s.pos_weight[0] == 3);
    loss_spec_release(&s);
}

TEST(loss_not_accepted, "a changed parameter on a loss without it is refused with its value")
{
    loss_refused(
        "{\"type\": \"MSELoss\", \"label_smoothing\": 0.1}",
        "Loss 'MSELoss' does not accept label_smoothing; got 0.1. ");
    loss_refused(
        "{\"type\": \"BCELoss\", \"ignore_index\": 3}",
        "Loss 'BCELoss' does not accept ignore_index; got 3. ");
    loss_refused(
        "{\"type\": \"L1Loss\", \"weight\": \"1, 2\"}",
        "Loss 'L1Loss' does not accept weight; got '1, 2'. ");
    loss_refused("{\"type\": \"BCELoss\", \"pos_weight\": \"2\"}", "not accept pos_weight");
    loss_refused("{\"type\": \"NLLLoss\", \"label_smoothing\": 0.5}", "not accept label_smoothing");
}

TEST(loss_bad, "values that cannot be used are refused by name")
{
    loss_refused("{\"type\": \"CrossEntropy\"}", "CrossEntropy");
    loss_refused("{\"reduction\": \"average\"}", "\"reduction\"");
    loss_refused("{\"label_smoothing\": 1.5}", "\"label_smoothing\"");
    loss_refused("{\"label_smoothing\": -0.5}", "\"label_smoothing\"");
    loss_refused("{\"weight\": \"0.2, x\"}", "\"weight\"");
    loss_refused("{\"weight\": \"0.2,, 1\"}", "\"weight\"");
    loss_refused("{\"weight\": \"0.2 1\"}", "\"weight\"");
    loss_refused("{\"weight\": \"nan\"}", "\"weight\"");
    loss_refused("{\"weight\": \"inf, 1\"}", "\"weight\"");
    loss_refused("{\"weight\": {}}", "\"weight\"");
    loss_refused("{\"ignore_index\": 1.5}", "\"ignore_index\"");
    loss_refused(
        "{\"type\": \"BCEWithLogitsLoss\", \"weight\": \"1\", \"pos_weight\": \"1e999\"}",
        "\"pos_weight\"");
}
