/* sweep_test.c - sweeps as users send them: whole or not at all, ranks, CSV, cancel, restarts. */
#include "server/core_test_support.h"
#include "server/store_int.h"
#include "server/sweep.h"
#include "test.h"

#include <math.h>
#include <string.h>

static struct stage s;
static struct puppet f;

static struct sweeps sweeps_of(void)
{
    return (struct sweeps){.core = s.core, .store = s.store, .limits = {32, 4, 32}};
}

/* A body over the small graph; `rest` is more of it ("'name':'lab',"). */
static json_t *body_of(const char *rest, const char *values)
{
    char text[1024];
    (void)snprintf(
        text, sizeof text,
        "{%s'objective':{'metric':'val_loss','direction':'minimize'},"
        "'sweep_spec':{'method':'grid','seed':5,'params':[{'node_id':'l','param':'batch_size',"
        "'values':%s}]}}",
        rest, values);
    json_t *body = J(text);
    json_put(body, "base_graph", small_graph(16));
    return body;
}

static enum status create(json_t *body, json_t **reply)
{
    struct sweeps x = sweeps_of();
    enum status st = sweep_create(&x, &s.person, body, s.now, reply, &s.e);
    json_decref(body);
    (void)core_tick(s.core, s.now);
    return st;
}

static json_t *read_sweep(const char *id)
{
    json_t *doc;
    struct sweeps x = sweeps_of();
    CHECK_OK(sweep_read(&x, id, s.now, &doc, &s.e), &s.e);
    return doc;
}

static int64_t all_runs(void)
{
    int64_t by_state[RUN_STATE_COUNT], n = 0;
    CHECK_OK(store_runs_count(s.store, by_state, &s.e), &s.e);
    for (int i = 0; i < RUN_STATE_COUNT; i++)
        n += by_state[i];
    return n;
}

static const char *run_at(const json_t *reply, size_t i)
{
    return json_get_str(json_array_get(json_object_get(reply, "variants"), i), "run_id", "");
}

/* Lets a run go to its end with this objective (NaN: none). */
static void play(const char *run, double objective, const char *status)
{
    char points[160];
    int64_t epoch = puppet_start(&f, run);
    CHECK(epoch == 1);
    (void)snprintf(
        points, sizeof points, "{'points':[{'name':'%s','value':%.17g,'step':1,'node_id':'l'}]}",
        isnan(objective) ? "train_loss" : "val_loss", isnan(objective) ? 1.0 : objective);
    CHECK(puppet_event(&f, run, 1, 2, "metric", points));
    CHECK(puppet_event(&f, run, 1, 3, "execution_complete", "{}"));
    char end[96];
    (void)snprintf(
        end, sizeof end, "{'status':'%s','cause':'%s'}", status,
        strcmp(status, "failed") == 0 ? "graph_error" : "done");
    CHECK(puppet_event(&f, run, 1, 4, "ended", end));
    (void)core_tick(s.core, s.now);
}

static void open_all(int cards)
{
    stage_open(&s, cards);
    puppet_open(&f, &s, "local", cards, 24);
    CHECK(puppet_connect(&f));
}

static void close_all(void)
{
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    sweeps_become_runs, "SW1 R10: variants in order, names, seeds, options handed on, one snapshot")
{
    json_t *reply;
    open_all(0);
    CHECK_OK(
        create(
            body_of("'name':'lab','seed_variants':true,'options':{'device':'cpu'},", "[8,16,32]"),
            &reply),
        &s.e);
    CHECK_STR(json_get_str(reply, "state", ""), "running");
    CHECK_EQ(json_get_i64(reply, "total_combinations", 0), 3);
    CHECK_EQ(json_get_i64(reply, "seed", 0), 5);
    for (size_t i = 0; i < 3; i++) {
        const json_t *v = json_array_get(json_object_get(reply, "variants"), i);
        const char *run = run_at(reply, i);
        char name[16];
        CHECK_EQ(json_get_i64(v, "index", -1), (int64_t)i);
        CHECK_EQ(json_get_i64(v, "domain_index", -1), (int64_t)i);
        CHECK_EQ(json_get_i64(v, "seed", 0), 5 + (int64_t)i);
        CHECK_STR(json_get_str(v, "status", ""), "queued");
        (void)snprintf(name, sizeof name, "lab #%zu", i + 1);
        CHECK_STR(field(&s, run, "name"), name);
        char seed[8];
        (void)snprintf(seed, sizeof seed, "%zu", 5 + i);
        CHECK_STR(field(&s, run, "options.seed"), seed);
        CHECK_STR(field(&s, run, "options.device"), "cpu");
        json_t *graph;
        CHECK_OK(core_graph(s.core, run, &graph, &s.e), &s.e);
        const json_t *node = json_array_get(json_object_get(graph, "nodes"), 1);
        CHECK_EQ(
            json_get_i64(json_object_get(json_object_get(node, "data"), "params"), "batch_size", 0),
            8 << i);
        json_decref(graph);
    }
    sqlite3_stmt *st;
    CHECK_EQ(
        sqlite3_prepare_v2(s.store->writer.db, "SELECT count(*) FROM graphs", -1, &st, NULL), 0);
    CHECK_EQ(sqlite3_step(st), SQLITE_ROW);
    CHECK_EQ(sqlite3_column_int(st, 0), 1);
    (void)sqlite3_finalize(st);
    json_decref(reply);
    close_all();
}

TEST(
    seeds_wrap_around, "SW1: variant i has the seed (seed + i) mod 2^32; names are cut to 64 bytes")
{
    json_t *reply, *body;
    open_all(0);
    body = body_of(
        "'name':'aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffgggg',"
        "'seed_variants':true,",
        "[8,16]");
    json_put_i64(json_object_get(body, "sweep_spec"), "seed", INT64_C(4294967295));
    CHECK_OK(create(body, &reply), &s.e);
    CHECK_STR(field(&s, run_at(reply, 0), "options.seed"), "4294967295");
    CHECK_STR(field(&s, run_at(reply, 1), "options.seed"), "0");
    CHECK_STR(
        field(&s, run_at(reply, 1), "name"),
        "aaaaaaaaaabbbbbbbbbbccccccccccddddddddddeeeeeeeeeeffffffffffg #2");
    json_decref(reply);
    CHECK_OK(create(body_of("", "[8]"), &reply), &s.e);
    CHECK_STR(field(&s, run_at(reply, 0), "name"), "small #1");
    CHECK_STR(field(&s, run_at(reply, 0), "options.seed"), "");
    json_decref(reply);
    close_all();
}

TEST(
    sweeps_are_refused_whole,
    "SW1 R10 B9 promise-P8: one refused variant leaves nothing behind, and says so")
{
    static const struct {
        const char *rest, *values, *text;
        enum status st;
    } rows[] = {
        {"'options':{'seed':1},", "[8]", "options.seed", ST_INVALID},
        {"'options':{'lane':' interactive '},", "[8]", "interactive lane", ST_INVALID},
        {"'options':{'target':{'worker':'nobody'}},", "[8]", "nobody", ST_INVALID},
        {"'options':{'colour':1},", "[8]", "colour", ST_INVALID},
        {"'options':{'target':{'worker':'local','devices':['cuda:7']}},", "[8]",
         "does not offer cuda:7", ST_INVALID},
        {"'note':1,", "[8]", "has no \"note\"", ST_UNPROCESSABLE},
        {"'options':[],", "[8]", "must be an object", ST_INVALID},
        {"'name':'',", "[8]", "1 to 64", ST_INVALID},
        {"'seed_variants':1,", "[8]", "true or false", ST_UNPROCESSABLE},
        {"", "[8,8]", "there twice", ST_INVALID},
        {"", "[0]", "below minimum", ST_INVALID},
    };
    json_t *reply = NULL;
    open_all(1);
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        enum status st = create(body_of(rows[i].rest, rows[i].values), &reply);
        if (st != rows[i].st || !strstr(s.e.text, rows[i].text))
            test_fail(__FILE__, __LINE__, "%s: %d %s", rows[i].rest, st, st ? s.e.text : "");
    }
    json_t *body = body_of(
        "'options':{'record_outputs':true},",
        "[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17,18,19,20,21]");
    CHECK_EQ(create(body, &reply), ST_INVALID);
    CHECK(strstr(s.e.text, "record_outputs"));
    body = body_of("'seed_variants':true,", "[8]");
    (void)json_object_del(json_object_get(body, "sweep_spec"), "seed");
    CHECK_EQ(create(body, &reply), ST_INVALID);
    CHECK(strstr(s.e.text, "seed_variants needs"));
    body = body_of("", "[8]");
    json_put_str(json_object_get(body, "objective"), "direction", "sideways");
    CHECK_EQ(create(body, &reply), ST_UNPROCESSABLE);
    body = body_of("", "[8]");
    json_put_str(json_object_get(body, "objective"), "metric", "");
    CHECK_EQ(create(body, &reply), ST_UNPROCESSABLE);
    CHECK_EQ(all_runs(), 0);
    struct sweeps x = sweeps_of();
    CHECK_OK(sweep_list(&x, 50, 0, &reply, &s.e), &s.e);
    CHECK_EQ(json_get_i64(reply, "total", -1), 0);
    json_decref(reply);
    close_all();
}

/* Fails the n-th row of a sweep being written, for every n. */
TEST(
    sweeps_are_stored_whole, "promise-P8 case-S11: whatever row cannot be written, the caller is "
                             "told, and there are all runs or none")
{
    open_all(0);
    for (int n = 1; n <= 6; n++) {
        char trigger[300];
        json_t *reply = NULL;
        const char *table = n <= 3 ? "sweep_variants" : "runs";
        (void)snprintf(
            trigger, sizeof trigger,
            "CREATE TEMP TRIGGER stop BEFORE INSERT ON main.%s WHEN"
            " (SELECT count(*) FROM main.%s) >= %d BEGIN SELECT raise(ABORT, 'no'); END",
            table, table, (n - 1) % 3);
        CHECK_EQ(sqlite3_exec(s.store->writer.db, trigger, NULL, NULL, NULL), SQLITE_OK);
        CHECK(create(body_of("", "[8,16,32]"), &reply) != ST_OK);
        CHECK_EQ(all_runs(), 0);
        CHECK_EQ(
            sqlite3_exec(s.store->writer.db, "DROP TRIGGER stop", NULL, NULL, NULL), SQLITE_OK);
    }
    json_t *reply;
    CHECK_OK(create(body_of("", "[8,16,32]"), &reply), &s.e);
    CHECK_EQ(all_runs(), 3);
    json_decref(reply);
    close_all();
}

TEST(
    variants_are_ranked, "SW1 R18 case-S17: by objective whatever the status; no objective last; "
                         "the best named; a failed child stays failed")
{
    json_t *reply, *doc;
    open_all(1);
    CHECK_OK(create(body_of("'options':{'device':'cuda:0'},", "[8,16,32,64]"), &reply), &s.e);
    const char *id = json_get_str(reply, "sweep_id", "");
    doc = read_sweep(id);
    CHECK_STR(json_get_str(doc, "state", ""), "running");
    CHECK(json_is_null(json_object_get(doc, "best")));
    CHECK(strstr(json_get_str(doc, "objective_warning", ""), "val_loss"));
    json_decref(doc);
    play(run_at(reply, 0), 0.5, "succeeded");
    play(run_at(reply, 1), (double)NAN, "succeeded");
    play(run_at(reply, 2), 0.25, "failed");
    play(run_at(reply, 3), 0.75, "succeeded");
    doc = read_sweep(id);
    CHECK_STR(json_get_str(doc, "state", ""), "finished");
    CHECK(json_get_str(doc, "finished_at", NULL) != NULL);
    static const int order[] = {2, 0, 3, 1};
    for (size_t i = 0; i < 4; i++) {
        const json_t *v = json_array_get(json_object_get(doc, "variants"), i);
        CHECK_EQ(json_get_i64(v, "index", -1), order[i]);
        CHECK_EQ(json_get_i64(v, "rank", 0), i < 3 ? (int64_t)i + 1 : 0);
        CHECK_STR(json_get_str(v, "worker_id", ""), "local");
        CHECK_STR(json_get_str(v, "queue_key", ""), "cuda:0");
        CHECK(json_array_size(json_object_get(v, "devices")) == 1);
        CHECK(json_get_bool(v, "run_exists", false));
    }
    CHECK_EQ(json_get_i64(json_object_get(doc, "best"), "index", -1), 2);
    CHECK_EQ(json_get_i64(json_object_get(doc, "counts"), "failed", -1), 1);
    CHECK_EQ(json_get_i64(json_object_get(doc, "counts"), "succeeded", -1), 3);
    CHECK(!json_object_get(doc, "objective_warning"));
    json_decref(doc);

    /* A deleted run keeps its place. */
    json_t *gone;
    CHECK_OK(core_delete(s.core, run_at(reply, 0), &gone, &s.e), &s.e);
    json_decref(gone);
    doc = read_sweep(id);
    const json_t *v = json_array_get(json_object_get(doc, "variants"), 1);
    CHECK(!json_get_bool(v, "run_exists", true));
    CHECK_STR(json_get_str(v, "status", ""), "succeeded");
    CHECK_NEAR(json_get_f64(v, "objective", 0), 0.5, 0);
    CHECK_STR(json_get_str(v, "worker_id", ""), "local");
    json_decref(doc);
    json_decref(reply);
    close_all();
}

TEST(
    comparisons_are_tables,
    "SW1: CSV with a byte order mark, shortest numbers, texts that are no formulas")
{
    json_t *reply, *body = J("{'objective':{'metric':'val_loss','direction':'maximize'},"
                             "'options':{'device':'cpu'},"
                             "'sweep_spec':{'method':'grid','params':[{'node_id':'=d',"
                             "'param':'name','values':['MNIST']},{'node_id':'l',"
                             "'param':'shuffle','values':[true,false]}]}}");
    struct str out;
    open_all(0);
    json_t *graph = small_graph(8);
    json_put_str(json_array_get(json_object_get(graph, "nodes"), 2), "id", "=d");
    json_put(body, "base_graph", graph);
    json_put_str(json_array_get(json_object_get(graph, "edges"), 0), "target", "=d");
    json_put_str(json_array_get(json_object_get(graph, "edges"), 1), "source", "=d");
    CHECK_OK(create(body, &reply), &s.e);
    play(run_at(reply, 1), -0.1, "succeeded");
    str_init(&out);
    struct sweeps x = sweeps_of();
    CHECK_OK(sweep_csv(&x, json_get_str(reply, "sweep_id", ""), s.now, &out, &s.e), &s.e);
    char want[512];
    (void)snprintf(
        want, sizeof want,
        "\xef\xbb\xbfrank,variant_index,domain_index,run_id,status,objective,\"'=d.name\",l."
        "shuffle\n"
        "1,1,1,%s,succeeded,-0.1,MNIST,false\n",
        run_at(reply, 1));
    out.data[strlen(want) < out.n ? strlen(want) : out.n] = '\0';
    CHECK_STR(out.data, want);
    str_release(&out);
    json_decref(reply);
    close_all();
}

TEST(
    sweeps_are_cancelled, "SW1 promise-P9: what waits ends, what runs is asked to stop, what ended "
                          "stays; never state cancelled")
{
    json_t *reply, *doc;
    struct sweeps x;
    open_all(1);
    CHECK_OK(create(body_of("'options':{'device':'cuda:0'},", "[8,16,32]"), &reply), &s.e);
    const char *id = json_get_str(reply, "sweep_id", "");
    play(run_at(reply, 0), 0.5, "succeeded");
    int64_t epoch = puppet_start(&f, run_at(reply, 1));
    CHECK(epoch);
    x = sweeps_of();
    CHECK_OK(sweep_cancel(&x, id, s.now, &doc, &s.e), &s.e);
    CHECK_STR(json_get_str(doc, "state", ""), "cancelling");
    CHECK_EQ(json_get_i64(doc, "cancelled", -1), 2);
    CHECK_EQ(json_get_i64(doc, "already_finished", -1), 1);
    const json_t *v = json_object_get(doc, "variants");
    CHECK_STR(json_get_str(json_array_get(v, 0), "status", ""), "succeeded");
    CHECK_STR(json_get_str(json_array_get(v, 1), "status", ""), "running");
    CHECK_STR(json_get_str(json_array_get(v, 2), "status", ""), "cancelled");
    json_decref(doc);
    puppet_end(&f, run_at(reply, 1), epoch, "cancelled");
    doc = read_sweep(id);
    CHECK_STR(json_get_str(doc, "state", ""), "finished");
    CHECK_EQ(json_get_i64(json_object_get(doc, "counts"), "cancelled", -1), 2);
    json_decref(doc);
    CHECK_OK(sweep_cancel(&x, id, s.now, &doc, &s.e), &s.e);
    CHECK_EQ(json_get_i64(doc, "cancelled", -1), 0);
    CHECK_EQ(json_get_i64(doc, "already_finished", -1), 3);
    CHECK_STR(json_get_str(doc, "state", ""), "finished");
    json_decref(doc);
    CHECK_EQ(sweep_cancel(&x, "nothing", s.now, &doc, &s.e), ST_NOT_FOUND);
    json_decref(reply);
    close_all();
}

TEST(
    sweeps_survive_restarts,
    "SW2 case-S3 case-S5: after a kill every variant is there, as it was submitted, and goes on")
{
    json_t *reply, *doc;
    open_all(0);
    CHECK_OK(
        create(body_of("'options':{'device':'cpu'},'seed_variants':true,", "[8,16,32]"), &reply),
        &s.e);
    const char *id = json_get_str(reply, "sweep_id", "");
    play(run_at(reply, 0), 0.5, "succeeded");
    stage_restart(&s);
    CHECK(puppet_connect(&f));
    (void)core_tick(s.core, s.now);
    json_t *order = puppet_order(&f, "start");
    CHECK(order);
    const json_t *start = json_object_get(order, "body");
    CHECK_EQ(json_get_i64(json_object_get(start, "options"), "seed", 0), 6);
    const json_t *node =
        json_array_get(json_object_get(json_object_get(start, "graph"), "nodes"), 1);
    CHECK_EQ(
        json_get_i64(json_object_get(json_object_get(node, "data"), "params"), "batch_size", 0),
        16);
    json_decref(order);
    doc = read_sweep(id);
    CHECK_STR(json_get_str(doc, "state", ""), "running");
    CHECK_EQ(json_get_i64(json_object_get(doc, "counts"), "queued", -1), 2);
    json_decref(doc);
    json_decref(reply);
    close_all();
}

TEST(variants_are_unique, "case-S1: a second run of a variant is refused by the database")
{
    json_t *reply;
    open_all(0);
    CHECK_OK(create(body_of("", "[8,16]"), &reply), &s.e);
    struct store_run twice = {.state = RUN_WAITING, .sweep = 1, .variant = 1, .repetition = -1};
    memset(twice.run_id, 'a', 32);
    int64_t id;
    CHECK_OK(store_begin(s.store, &s.e), &s.e);
    CHECK_EQ(store_run_add(s.store, &twice, &id, &s.e), ST_CONFLICT);
    CHECK_EQ(store_sweep_variant_add(s.store, 1, 1, 1, "x", &s.e), ST_CONFLICT);
    CHECK_EQ(store_end(s.store, ST_FAILED, &s.e), ST_FAILED);
    json_decref(reply);
    close_all();
}

TEST(
    sweeps_survive_a_stop,
    "SW2: a server that stops in good order leaves what waits of a sweep to the next one")
{
    json_t *reply, *doc;
    open_all(1);
    CHECK_OK(create(body_of("'options':{'device':'cuda:0'},", "[8,16,32]"), &reply), &s.e);
    const char *alone = submit(&s, "{'device':'cuda:0'}");
    play(run_at(reply, 0), 0.5, "succeeded");
    core_stop(s.core, s.now);
    stage_restart(&s);
    CHECK_STR(field(&s, alone, "status"), "interrupted");
    CHECK(puppet_connect(&f));
    (void)core_tick(s.core, s.now);
    doc = read_sweep(json_get_str(reply, "sweep_id", ""));
    CHECK_STR(json_get_str(doc, "state", ""), "running");
    CHECK_EQ(json_get_i64(json_object_get(doc, "counts"), "succeeded", -1), 1);
    CHECK_STR(field(&s, run_at(reply, 2), "status"), "queued");
    json_decref(doc);
    json_decref(reply);
    close_all();
}
