/* study_test.c - studies: cells, seeds, budget, pause and resume, restarts, events. */
#include "server/core_test_support.h"
#include "server/study.h"
#include "test.h"

#include <math.h>
#include <string.h>

static struct stage s;
static struct puppet f;
static struct studies *studies;

static void open_studies(void)
{
    struct sweeps x = {.core = s.core, .store = s.store, .limits = {32, 4, 32}};
    studies = studies_new(&x, NULL);
}

static void open_all(void)
{
    stage_open(&s, 1);
    puppet_open(&f, &s, "local", 1, 24);
    CHECK(puppet_connect(&f));
    open_studies();
}

static void close_all(void)
{
    studies_free(studies);
    puppet_close(&f);
    stage_close(&s);
}

/* A kill: all that memory knew is gone. */
static void restart(void)
{
    studies_free(studies);
    stage_restart(&s);
    open_studies();
    CHECK(puppet_connect(&f));
    studies_tick(studies, s.now);
    (void)core_tick(s.core, s.now);
}

static void tick(void)
{
    studies_note(studies, 1);
    studies_tick(studies, s.now);
    (void)core_tick(s.core, s.now);
}

static json_t *body_of(const char *rest)
{
    char text[1024];
    (void)snprintf(
        text, sizeof text,
        "{%s'name':'lab','objective':{'metric':'val_loss','direction':'minimize'},"
        "'options':{'device':'cuda:0'},"
        "'sweep_spec':{'method':'grid','seed':10,'params':[{'node_id':'l',"
        "'param':'batch_size','values':[8,16]}]}}",
        rest);
    json_t *body = J(text);
    json_put(body, "base_graph", small_graph(4));
    return body;
}

static enum status create(json_t *body, char id[33])
{
    json_t *doc;
    enum status st = study_create(studies, &s.person, body, s.now, &doc, &s.e);
    json_decref(body);
    if (st != ST_OK)
        return st;
    (void)snprintf(id, 33, "%s", json_get_str(doc, "study_id", ""));
    json_decref(doc);
    (void)core_tick(s.core, s.now);
    return ST_OK;
}

static json_t *read_study(const char *id)
{
    json_t *doc;
    CHECK_OK(study_read(studies, id, &doc, &s.e), &s.e);
    return doc;
}

static int64_t count(const char *id, const char *status)
{
    json_t *doc = read_study(id);
    int64_t n = json_get_i64(json_object_get(doc, "counts"), status, -1);
    json_decref(doc);
    return n;
}

static const char *state(const char *id)
{
    static char text[16];
    json_t *doc = read_study(id);
    (void)snprintf(text, sizeof text, "%s", json_get_str(doc, "state", ""));
    json_decref(doc);
    return text;
}

/* Takes the start that is out, tells the objective and the end. False: none is out. */
static bool play_next(const char *status, double objective)
{
    json_t *order = puppet_order(&f, "start");
    char run[33], text[160];
    if (!order)
        return false;
    int64_t epoch = json_get_i64(order, "epoch", 0);
    (void)snprintf(run, sizeof run, "%s", json_get_str(order, "run_id", ""));
    json_decref(order);
    CHECK(puppet_event(&f, run, epoch, 1, "started", "{}"));
    (void)snprintf(
        text, sizeof text, "{'points':[{'name':'val_loss','value':%.17g,'step':1,'node_id':'l'}]}",
        objective);
    CHECK(puppet_event(&f, run, epoch, 2, "metric", text));
    (void)snprintf(
        text, sizeof text, "{'status':'%s','cause':'%s'}", status,
        strcmp(status, "failed") == 0        ? "graph_error"
        : strcmp(status, "interrupted") == 0 ? "child_lost"
                                             : "done");
    CHECK(puppet_event(&f, run, epoch, 3, "ended", text));
    (void)core_tick(s.core, s.now);
    tick();
    return true;
}

/* The log of a study: "started submitted:0.0 …", and that its cursors have no gap. */
static const char *story(const char *id)
{
    static char text[4096];
    json_t *doc, *ev;
    size_t i, n = 0;
    CHECK_OK(study_events(studies, id, 0, 2000, &doc, &s.e), &s.e);
    text[0] = '\0';
    json_array_foreach(json_object_get(doc, "events"), i, ev)
    {
        const json_t *p = json_object_get(ev, "payload");
        const char *type = json_get_str(ev, "type", "");
        CHECK_EQ(json_get_i64(ev, "cursor", 0), (int64_t)i + 1);
        n += (size_t)snprintf(
            text + n, sizeof text - n, "%s%s", n ? " " : "", strchr(type, '_') + 1);
        if (json_object_get(p, "variant"))
            n += (size_t)snprintf(
                text + n, sizeof text - n, ":%d.%d.%d", (int)json_get_i64(p, "variant", 0),
                (int)json_get_i64(p, "repetition", 0), (int)json_get_i64(p, "attempt", 0));
    }
    json_decref(doc);
    return text;
}

TEST(
    studies_go_through,
    "SW2 R10: variants x repetitions in order, each with its seed, means ranked")
{
    char id[33];
    open_all();
    CHECK_OK(create(body_of("'repetitions':3,"), id), &s.e);
    CHECK_EQ(count(id, "queued"), 6);
    json_t *doc = read_study(id);
    const json_t *cells =
        json_object_get(json_array_get(json_object_get(doc, "variants"), 1), "cells");
    CHECK_EQ(json_array_size(cells), 3);
    for (size_t i = 0; i < 3; i++) {
        const json_t *cell = json_array_get(cells, i);
        const char *run = json_get_str(cell, "run_id", "");
        char text[24];
        CHECK_EQ(json_get_i64(cell, "seed", 0), 10 + (int64_t)i);
        (void)snprintf(text, sizeof text, "%zu", 10 + i);
        CHECK_STR(field(&s, run, "options.seed"), text);
        (void)snprintf(text, sizeof text, "lab #2.%zu", i + 1);
        CHECK_STR(field(&s, run, "name"), text);
        CHECK_STR(field(&s, run, "repetition"), i == 0 ? "0" : i == 1 ? "1" : "2");
    }
    json_decref(doc);
    /* In the order (0,0) (1,0) (0,1) …: variant 0 gets 3, 5, 7, variant 1 gets 4, 4, 4. */
    static const double values[] = {3, 4, 5, 4, 7, 4};
    for (size_t i = 0; i < 6; i++)
        CHECK(play_next("succeeded", values[i]));
    CHECK(!play_next("succeeded", 0));
    CHECK_STR(state(id), "finished");
    doc = read_study(id);
    const json_t *best = json_array_get(json_object_get(doc, "variants"), 0),
                 *other = json_array_get(json_object_get(doc, "variants"), 1);
    CHECK_EQ(json_get_i64(best, "index", -1), 1);
    CHECK_NEAR(json_get_f64(best, "objective", 0), 4, 0);
    CHECK_NEAR(json_get_f64(best, "objective_std", 9), 0, 0);
    CHECK_NEAR(json_get_f64(other, "objective", 0), 5, 1e-12);
    CHECK_NEAR(json_get_f64(other, "objective_std", 0), 2, 1e-12); /* of 3, 5, 7 */
    CHECK_EQ(json_get_i64(json_object_get(doc, "best"), "index", -1), 1);
    CHECK_EQ(json_get_i64(doc, "runs_made", 0), 6);
    const json_t *cell = json_array_get(json_object_get(best, "cells"), 0);
    CHECK_STR(json_get_str(cell, "worker_id", ""), "local");
    CHECK_STR(json_get_str(cell, "queue_key", ""), "cuda:0");
    json_decref(doc);
    CHECK(strstr(story(id), "started submitted:0.0.1"));
    CHECK(strstr(story(id), "ended:1.2.1 finished"));
    close_all();
}

TEST(
    studies_keep_their_window,
    "SW2: at most `parallel` runs at a time, at most runs_max in all; more budget goes on")
{
    char id[33];
    json_t *doc;
    open_all();
    CHECK_OK(create(body_of("'repetitions':2,'parallel':2,'runs_max':3,"), id), &s.e);
    CHECK_EQ(count(id, "queued"), 2);
    CHECK_EQ(count(id, "pending"), 2);
    CHECK(play_next("succeeded", 1));
    CHECK_EQ(count(id, "queued"), 2);
    CHECK(play_next("succeeded", 1));
    CHECK(play_next("succeeded", 1));
    CHECK(!play_next("succeeded", 1));
    CHECK_STR(state(id), "finished");
    doc = read_study(id);
    CHECK_STR(json_get_str(doc, "reason", ""), "the budget of 3 runs is spent");
    json_decref(doc);
    CHECK_EQ(study_resume(studies, id, NULL, s.now, &doc, &s.e), ST_CONFLICT);
    json_t *more = J("{'runs_max':4}");
    CHECK_OK(study_resume(studies, id, more, s.now, &doc, &s.e), &s.e);
    json_decref(doc);
    json_decref(more);
    (void)core_tick(s.core, s.now);
    CHECK(play_next("succeeded", 1));
    CHECK_STR(state(id), "finished");
    CHECK_EQ(count(id, "succeeded"), 4);
    close_all();
}

TEST(
    studies_pause_between_cells,
    "SW2 case-S5: a pause takes back what waits; a resume goes on with the next cell, none twice")
{
    char id[33];
    json_t *doc;
    open_all();
    CHECK_OK(create(body_of("'repetitions':2,"), id), &s.e);
    json_t *order = puppet_order(&f, "start");
    CHECK(order);
    char run[33];
    (void)snprintf(run, sizeof run, "%s", json_get_str(order, "run_id", ""));
    json_decref(order);
    CHECK(puppet_event(&f, run, 1, 1, "started", "{}"));
    CHECK_OK(study_pause(studies, id, s.now, &doc, &s.e), &s.e);
    CHECK_STR(json_get_str(doc, "state", ""), "paused");
    CHECK_EQ(json_get_i64(json_object_get(doc, "counts"), "pending", 0), 3);
    CHECK_EQ(json_get_i64(json_object_get(doc, "counts"), "running", 0), 1);
    CHECK_EQ(json_get_i64(doc, "runs_made", 0), 1); /* what never started is not counted */
    json_decref(doc);
    puppet_end(&f, run, 1, "succeeded");
    tick();
    CHECK_EQ(count(id, "succeeded"), 1);
    CHECK_STR(state(id), "paused");
    restart();
    CHECK_STR(state(id), "paused");
    CHECK_OK(study_resume(studies, id, NULL, s.now, &doc, &s.e), &s.e);
    json_decref(doc);
    (void)core_tick(s.core, s.now);
    for (int i = 0; i < 3; i++)
        CHECK(play_next("succeeded", 2));
    CHECK(!play_next("succeeded", 2));
    CHECK_STR(state(id), "finished");
    CHECK_EQ(count(id, "succeeded"), 4);
    doc = read_study(id);
    CHECK_EQ(json_get_i64(doc, "runs_made", 0), 4);
    json_decref(doc);
    CHECK(strstr(story(id), "paused"));
    CHECK(strstr(story(id), "resumed"));
    close_all();
}

TEST(
    studies_survive_restarts,
    "SW2 case-S1 case-S3: killed between any two steps, every cell has one result")
{
    char id[33];
    open_all();
    CHECK_OK(create(body_of("'repetitions':2,'parallel':1,"), id), &s.e);
    for (int i = 0; i < 4; i++) {
        restart(); /* before the run starts */
        json_t *order = puppet_order(&f, "start");
        CHECK(order);
        char run[33];
        (void)snprintf(run, sizeof run, "%s", json_get_str(order, "run_id", ""));
        int64_t epoch = json_get_i64(order, "epoch", 0);
        json_decref(order);
        CHECK(puppet_event(&f, run, epoch, 1, "started", "{}"));
        puppet_end(&f, run, epoch, "succeeded");
        restart(); /* its end is stored; the study has not seen it */
    }
    CHECK_STR(state(id), "finished");
    CHECK_EQ(count(id, "succeeded"), 4);
    CHECK_STR(
        story(id), "started submitted:0.0.1 ended:0.0.1 submitted:1.0.1 ended:1.0.1 "
                   "submitted:0.1.1 ended:0.1.1 submitted:1.1.1 ended:1.1.1 finished");
    close_all();
}

TEST(
    studies_repeat_what_was_interrupted,
    "SW2 case-S17: a machine that went away costs an attempt, not the cell; a failure is a result")
{
    char id[33];
    json_t *doc;
    open_all();
    CHECK_OK(create(body_of("'attempts':2,'parallel':1,"), id), &s.e);
    CHECK(play_next("interrupted", 1));
    CHECK(play_next("interrupted", 1)); /* the second attempt was the last */
    CHECK_EQ(count(id, "interrupted"), 1);
    CHECK(play_next("failed", 7));
    CHECK_STR(state(id), "finished");
    CHECK_STR(
        story(id), "started submitted:0.0.1 ended:0.0.1 submitted:0.0.2 ended:0.0.2 "
                   "submitted:1.0.1 ended:1.0.1 finished");
    doc = read_study(id);
    CHECK_EQ(json_get_i64(json_object_get(doc, "best"), "index", -1), 0);
    json_decref(doc);
    json_t *retry = J("{'retry_failed':true}");
    CHECK_OK(study_resume(studies, id, retry, s.now, &doc, &s.e), &s.e);
    json_decref(doc);
    json_decref(retry);
    (void)core_tick(s.core, s.now);
    CHECK(play_next("succeeded", 3));
    CHECK(play_next("succeeded", 2));
    CHECK_STR(state(id), "finished");
    CHECK_EQ(count(id, "succeeded"), 2);
    close_all();
}

TEST(studies_pause_on_failure, "case-S5: fail-fast leaves what has not started resumable")
{
    char id[33];
    json_t *doc;
    open_all();
    CHECK_OK(create(body_of("'repetitions':2,'on_failure':'pause','parallel':1,"), id), &s.e);
    CHECK(play_next("failed", 1));
    CHECK_STR(state(id), "paused");
    CHECK_EQ(count(id, "pending"), 3);
    doc = read_study(id);
    CHECK(strstr(json_get_str(doc, "reason", ""), "ended failed"));
    json_decref(doc);
    CHECK_OK(study_resume(studies, id, NULL, s.now, &doc, &s.e), &s.e);
    json_decref(doc);
    (void)core_tick(s.core, s.now);
    CHECK(play_next("succeeded", 1));
    CHECK_STR(state(id), "running");
    close_all();
}

TEST(
    studies_are_cancelled,
    "SW2 promise-P9: every run of it is stopped; results stay; nothing is submitted any more")
{
    char id[33];
    json_t *doc;
    open_all();
    CHECK_OK(create(body_of("'repetitions':2,"), id), &s.e);
    CHECK(play_next("succeeded", 1));
    json_t *order = puppet_order(&f, "start");
    CHECK(order);
    char run[33];
    (void)snprintf(run, sizeof run, "%s", json_get_str(order, "run_id", ""));
    json_decref(order);
    CHECK(puppet_event(&f, run, 1, 1, "started", "{}"));
    CHECK_OK(study_cancel(studies, id, s.now, &doc, &s.e), &s.e);
    CHECK_STR(json_get_str(doc, "state", ""), "cancelling");
    json_decref(doc);
    CHECK_EQ(study_resume(studies, id, NULL, s.now, &doc, &s.e), ST_CONFLICT);
    puppet_end(&f, run, 1, "cancelled");
    tick();
    CHECK_STR(state(id), "cancelled");
    CHECK_EQ(count(id, "succeeded"), 1);
    CHECK_EQ(count(id, "queued"), 0);
    CHECK(!play_next("succeeded", 1));
    CHECK_OK(study_cancel(studies, id, s.now, &doc, &s.e), &s.e);
    json_decref(doc);
    CHECK_EQ(study_pause(studies, id, s.now, &doc, &s.e), ST_CONFLICT);
    CHECK_EQ(study_pause(studies, "nothing", s.now, &doc, &s.e), ST_NOT_FOUND);
    close_all();
}

TEST(
    studies_are_refused_whole,
    "SW2 R10 B9: what one run would be refused for refuses the study, before anything is stored")
{
    static const struct {
        const char *rest, *text;
        enum status st;
    } rows[] = {
        {"'repetitions':0,", "repetitions is a whole number", ST_INVALID},
        {"'repetitions':50001,", "more than 100000", ST_INVALID},
        {"'parallel':0,", "parallel is", ST_INVALID},
        {"'seed':-1,", "seed is", ST_INVALID},
        {"'on_failure':'cry',", "continue or pause", ST_INVALID},
        {"'wish':1,", "has no \"wish\"", ST_UNPROCESSABLE},
        {"'options':{'target':{'worker':'nobody'}},", "", ST_INVALID},
    };
    char id[33];
    json_t *doc, *body;
    open_all();
    for (size_t i = 0; i < sizeof rows / sizeof *rows - 1; i++) {
        enum status st = create(body_of(rows[i].rest), id);
        if (st != rows[i].st || !strstr(s.e.text, rows[i].text))
            test_fail(__FILE__, __LINE__, "%s: %d %s", rows[i].rest, st, st ? s.e.text : "");
    }
    body = body_of("");
    json_put(json_object_get(body, "options"), "target", J("{'worker':'nobody'}"));
    CHECK_EQ(create(body, id), ST_INVALID);
    CHECK(strstr(s.e.text, "nobody"));
    body = body_of("");
    json_put_i64(json_object_get(body, "options"), "seed", 3);
    CHECK_EQ(create(body, id), ST_INVALID);
    CHECK_OK(study_list(studies, 50, 0, &doc, &s.e), &s.e);
    CHECK_EQ(json_get_i64(doc, "total", -1), 0);
    json_decref(doc);
    close_all();
}

TEST(studies_are_tables, "SW2: CSV, a row a cell; a study of one graph needs no parameters")
{
    char id[33];
    struct str out;
    json_t *body = J("{'objective':{'metric':'val_loss','direction':'minimize'},"
                     "'options':{'device':'cuda:0'},'repetitions':2,'seed':4294967295}");
    open_all();
    json_put(body, "base_graph", small_graph(4));
    CHECK_OK(create(body, id), &s.e);
    CHECK(play_next("succeeded", 0.5));
    str_init(&out);
    CHECK_OK(study_csv(studies, id, &out, &s.e), &s.e);
    CHECK(str_starts(
        out.data, "\xef\xbb\xbfrank,variant_index,domain_index,repetition,attempt,seed,run_id,"
                  "status,objective,worker_id\n1,0,0,0,1,4294967295,"));
    CHECK(strstr(out.data, ",succeeded,0.5,local\n1,0,0,1,1,0,"));
    str_release(&out);
    close_all();
}
