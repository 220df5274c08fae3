/* core_options_test.c - what a submission may say: options, targets, devices, names, keys,
 * commands. */
#include "server/core_test_support.h"

#include "test.h"

#include <string.h>

static const char *refusal(struct stage *s, const char *options)
{
    CHECK(!submit(s, options));
    return s->e.text;
}

TEST(options_are_a_closed_set, "R4 H4: unknown keys and values of another kind are refused by name")
{
    struct stage s;
    stage_open(&s, 1);
    CHECK_STR(refusal(&s, "{'sed':1}"), "unknown option \"sed\"");
    CHECK(strstr(s.e.hint, "\"seed\""));
    CHECK_EQ(s.e.status, ST_INVALID);
    CHECK(strstr(refusal(&s, "{'seed':-1}"), "option seed must be"));
    CHECK(strstr(refusal(&s, "{'seed':4294967296}"), "option seed"));
    CHECK(strstr(refusal(&s, "{'seed':1.5}"), "option seed"));
    CHECK(strstr(refusal(&s, "{'seed':true}"), "option seed"));
    CHECK(submit(&s, "{'seed':4294967295}"));
    CHECK(strstr(refusal(&s, "{'deterministic':1}"), "deterministic"));
    CHECK(strstr(refusal(&s, "{'lane':'fast'}"), "queued|interactive"));
    CHECK(strstr(refusal(&s, "{'lane':''}"), "lane"));
    CHECK(strstr(refusal(&s, "{'lane':'queued|interactive'}"), "lane"));
    CHECK(strstr(refusal(&s, "{'error_mode':'never'}"), "fail_fast"));
    CHECK(strstr(refusal(&s, "{'max_retries':11}"), "max_retries"));
    CHECK(strstr(refusal(&s, "{'device':'gpu'}"), "option device"));
    CHECK(strstr(refusal(&s, "{'device':'cuda:'}"), "option device"));
    CHECK(strstr(refusal(&s, "{'device':'cpu:0'}"), "option device"));
    CHECK(strstr(refusal(&s, "{'graph_id':''}"), "graph_id"));
    CHECK(strstr(refusal(&s, "[]"), "options must be an object"));
    CHECK(strstr(refusal(&s, "{'target':{'workr':'a'}}"), "unknown key of target"));
    CHECK(strstr(refusal(&s, "{'target':{'worker':''}}"), "target.worker"));
    CHECK(strstr(refusal(&s, "{'target':{'devices':[]}}"), "target.devices"));
    CHECK(strstr(refusal(&s, "{'target':{'devices':['cuda:0','cuda:0']}}"), "twice"));
    CHECK(strstr(refusal(&s, "{'target':{'devices':['cuda:0','cpu']}}"), "one kind"));
    CHECK(strstr(refusal(&s, "{'target':{'memory_gib':0}}"), "memory_gib"));
    CHECK(strstr(refusal(&s, "{'target':{'memory_gib':'6'}}"), "memory_gib"));
    CHECK(strstr(refusal(&s, "{'target':{'memory_source':'estimate'}}"), "memory_source"));
    CHECK(strstr(refusal(&s, "{'target':{'worker':'a','pool':'p'}}"), "target.pool"));
    CHECK(strstr(refusal(&s, "{'target':{'pool':'p'},'record_outputs':true}"), "one-shot"));
    CHECK(strstr(refusal(&s, "{'lane':'interactive','target':{'worker':'any'}}"), "never sent"));
    stage_close(&s);
}

TEST(changed_nodes_of_a_canvas, "R1 H4: the editor's list of changed nodes is a canvas run's alone")
{
    struct stage s;
    stage_open(&s, 1);
    CHECK(strstr(refusal(&s, "{'changed_nodes':['a']}"), "goes with the interactive lane"));
    CHECK(strstr(
        refusal(&s, "{'lane':'interactive','changed_nodes':'a'}"), "changed_nodes must be a list"));
    CHECK(strstr(refusal(&s, "{'lane':'interactive','changed_nodes':[1]}"), "must be a list"));
    CHECK(strstr(refusal(&s, "{'lane':'interactive','changed_nodes':['']}"), "must be a list"));
    CHECK(submit(&s, "{'lane':'interactive','graph_id':'t','changed_nodes':[]}"));
    CHECK(submit(&s, "{'lane':'interactive','graph_id':'u','changed_nodes':['a','b']}"));
    stage_close(&s);
}

static enum status body_status(struct stage *s, const char *text)
{
    json_t *body = J(text), *reply = NULL;
    struct core_submission x;
    s->e = (struct err){0};
    enum status st = core_submission_read(body, NULL, &x, &s->e);
    if (st == ST_OK)
        st = core_submit(s->core, &s->person, &x, s->now, &reply, &s->e);
    json_decref(body);
    json_decref(reply);
    return st;
}

TEST(
    bodies_without_a_graph,
    "H4: a body without a graph is 422, one without nodes or with an odd device 400")
{
    struct stage s;
    stage_open(&s, 0);
    CHECK_EQ(body_status(&s, "{}"), ST_UNPROCESSABLE);
    CHECK_EQ(body_status(&s, "{'graph':null}"), ST_UNPROCESSABLE);
    CHECK_EQ(body_status(&s, "{'graph':[]}"), ST_UNPROCESSABLE);
    CHECK_EQ(body_status(&s, "{'graph':{}}"), ST_UNPROCESSABLE);
    CHECK_EQ(body_status(&s, "{'graph':{'nodes':[],'edges':[]}}"), ST_INVALID);
    CHECK_EQ(body_status(&s, "{'graph':{'nodes':['x'],'edges':[]}}"), ST_UNPROCESSABLE);
    CHECK_EQ(
        body_status(
            &s, "{'graph':{'nodes':[{'id':'a','type':'Start','data':{'params':{}}}],'edges':[],"
                "'settings':{'device':'tpu'}}}"),
        ST_INVALID);
    CHECK_EQ(
        body_status(
            &s, "{'name':'0123456789012345678901234567890123456789012345678901234567890123x',"
                "'graph':{'nodes':[{'id':'a','type':'Start','data':{'params':{}}}],'edges':[]}}"),
        ST_INVALID);
    CHECK_EQ(
        body_status(&s, "{'name':5,'graph':{'nodes':[{'id':'a','type':'Start'}],'edges':[]}}"),
        ST_UNPROCESSABLE);
    stage_close(&s);
}

TEST(
    local_devices_fall_back,
    "D2 D4 R4: without a set a missing device falls back with a warning; a set is refused")
{
    struct stage s;
    json_t *page;
    stage_open(&s, 0);
    const char *run = submit(&s, "{'device':'cuda'}");
    CHECK(run);
    CHECK_STR(field(&s, run, "requested_devices.0"), "cpu");
    CHECK_OK(core_events(s.core, run, 0, 10, &page, &s.e), &s.e);
    const json_t *first = json_array_get(json_object_get(page, "events"), 0);
    CHECK_STR(json_get_str(first, "type", ""), "run_warning");
    CHECK_STR(json_get_str(json_object_get(first, "payload"), "kind", ""), "device_fallback");
    json_decref(page);
    CHECK_STR(
        refusal(&s, "{'target':{'worker':'local','devices':['cuda:0']}}"),
        "this server does not offer cuda:0 (it offers cpu)");
    stage_close(&s);

    stage_open(&s, 2);
    run = submit(&s, "{'device':'cuda:3'}");
    CHECK_STR(field(&s, run, "requested_devices.0"), "cuda:0");
    CHECK_OK(core_events(s.core, run, 0, 10, &page, &s.e), &s.e);
    first = json_array_get(json_object_get(page, "events"), 0);
    CHECK(
        strstr(json_get_str(json_object_get(first, "payload"), "message", ""), "has 2 CUDA cards"));
    json_decref(page);
    run = submit(&s, "{'device':'cuda'}"); /* the current card: nothing to warn of */
    CHECK_STR(field(&s, run, "requested_devices.0"), "cuda:0");
    CHECK_STR(field(&s, run, "last_cursor"), "0");
    run = submit(&s, "{'device':'auto'}");
    CHECK_STR(field(&s, run, "requested_devices.0"), "cuda:0");
    run = submit(&s, NULL);
    CHECK_STR(field(&s, run, "requested_devices.0"), "cpu");
    stage_close(&s);
}

TEST(graph_settings_name_the_device, "R2: options before the graph's settings before the CPU")
{
    struct stage s;
    json_t *graph = small_graph(1), *options = J("{'device':'cuda:0'}"), *reply;
    stage_open(&s, 2);
    json_put(graph, "settings", J("{'device':'cuda:1'}"));
    struct core_submission x = {.graph = graph, .variant = -1, .repetition = -1};
    CHECK_OK(core_submit(s.core, &s.person, &x, s.now, &reply, &s.e), &s.e);
    CHECK_STR(field(&s, json_get_str(reply, "run_id", ""), "queue_key"), "cuda:1");
    json_decref(reply);
    x.options = options;
    CHECK_OK(core_submit(s.core, &s.person, &x, s.now, &reply, &s.e), &s.e);
    CHECK_STR(field(&s, json_get_str(reply, "run_id", ""), "queue_key"), "cuda:0");
    json_decref(reply);
    json_decref(graph);
    json_decref(options);
    stage_close(&s);
}

TEST(same_key_same_run, "promise-P1: an idempotency key makes a submission happen at most once")
{
    struct stage s;
    json_t *graph = small_graph(1), *other = small_graph(2), *a, *b;
    stage_open(&s, 0);
    struct core_submission x = {
        .graph = graph, .idempotency_key = "k", .variant = -1, .repetition = -1};
    CHECK_OK(core_submit(s.core, &s.person, &x, s.now, &a, &s.e), &s.e);
    stage_restart(&s);
    CHECK_OK(core_submit(s.core, &s.person, &x, s.now, &b, &s.e), &s.e);
    CHECK_STR(json_get_str(a, "run_id", ""), json_get_str(b, "run_id", "-"));
    CHECK(json_get_bool(b, "repeated", false));
    json_decref(b);
    x.graph = other;
    CHECK_EQ(core_submit(s.core, &s.person, &x, s.now, &b, &s.e), ST_CONFLICT);
    x.graph = graph; /* keys belong to their owner */
    CHECK_OK(core_submit(s.core, &s.owner, &x, s.now, &b, &s.e), &s.e);
    CHECK(strcmp(json_get_str(a, "run_id", ""), json_get_str(b, "run_id", "")) != 0);
    json_decref(a);
    json_decref(b);
    json_decref(graph);
    json_decref(other);
    stage_close(&s);
}

TEST(commands_need_exec, "H1: a command needs allow_commands and exec, else 403")
{
    struct stage s;
    stage_open(&s, 0);
    json_t *command = J("{'argv':['python3','t.py'],'environment':{'A':'1'}}"), *reply;
    struct core_submission x = {.command = command, .variant = -1, .repetition = -1};
    CHECK_EQ(core_submit(s.core, &s.owner, &x, s.now, &reply, &s.e), ST_DENIED);
    stage_close(&s);
    stage_open(&s, 0);
    core_close(s.core);
    s.config.allow_commands = true;
    CHECK_OK(core_open(s.store, &s.config, &s.hooks, s.now, &s.core, &s.e), &s.e);
    CHECK_EQ(core_submit(s.core, &s.person, &x, s.now, &reply, &s.e), ST_DENIED);
    CHECK_OK(core_submit(s.core, &s.owner, &x, s.now, &reply, &s.e), &s.e);
    const char *run = json_get_str(reply, "run_id", "");
    CHECK_STR(field(&s, run, "kind"), "command");
    struct puppet f;
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    json_t *order = puppet_order(&f, "start");
    const json_t *body = json_object_get(order, "body");
    CHECK_STR(json_string_value(json_array_get(json_object_get(body, "argv"), 1)), "t.py");
    CHECK_STR(json_get_str(json_object_get(body, "environment"), "A", ""), "1");
    json_decref(order);
    json_decref(reply);
    static const char *const bad[] = {
        "{'argv':[]}",
        "{'argv':'ls'}",
        "{'argv':['']}",
        "{'argv':[1]}",
        "{'argv':['a'],'x':1}",
        "{'argv':['a'],'environment':{'A=B':'1'}}",
        "{'argv':['a'],'environment':{'A':1}}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        json_t *wrong = J(bad[i]);
        x.command = wrong;
        CHECK_EQ(core_submit(s.core, &s.owner, &x, s.now, &reply, &s.e), ST_INVALID);
        json_decref(wrong);
    }
    json_decref(command);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    the_queue_has_a_limit,
    "H4: more runs than SNUG_QUEUE_MAX are refused as 429, whole batches too")
{
    struct stage s;
    stage_open(&s, 0);
    core_close(s.core);
    s.config.queue_max = 3;
    CHECK_OK(core_open(s.store, &s.config, &s.hooks, s.now, &s.core, &s.e), &s.e);
    json_t *graph = small_graph(1);
    struct core_submission x[4];
    char ids[4][33];
    for (int i = 0; i < 4; i++)
        x[i] = (struct core_submission){.graph = graph, .variant = i, .repetition = -1};
    CHECK_EQ(core_submit_all(s.core, &s.person, x, 4, NULL, NULL, s.now, ids, &s.e), ST_FULL);
    CHECK_OK(core_submit_all(s.core, &s.person, x, 3, NULL, NULL, s.now, ids, &s.e), &s.e);
    CHECK(!submit(&s, NULL));
    CHECK_EQ(s.e.status, ST_FULL);
    json_decref(graph);
    stage_close(&s);
}

static enum status refuse_within(void *ctx, const char (*ids)[33], struct err *e)
{
    (void)ctx;
    (void)ids;
    return err_set(e, ST_INVALID, "the sweep cannot be stored");
}

TEST(
    a_batch_is_whole_or_nothing,
    "R10 B9 promise-P8: one refused run, or a failing caller, stores none")
{
    struct stage s;
    struct core_filter all = {.limit = 10};
    json_t *graph = small_graph(1), *bad = J("{'target':{'devices':['cuda:9']}}"), *page;
    struct core_submission x[3];
    char ids[3][33];
    stage_open(&s, 1);
    for (int i = 0; i < 3; i++)
        x[i] = (struct core_submission){.graph = graph, .variant = i, .repetition = -1};
    x[2].options = bad;
    CHECK_EQ(core_submit_all(s.core, &s.person, x, 3, NULL, NULL, s.now, ids, &s.e), ST_INVALID);
    x[2].options = NULL;
    CHECK_EQ(
        core_submit_all(s.core, &s.person, x, 3, refuse_within, NULL, s.now, ids, &s.e),
        ST_INVALID);
    CHECK_OK(core_runs(s.core, &all, &page, &s.e), &s.e);
    CHECK_EQ(json_get_i64(page, "total", -1), 0);
    json_decref(page);
    CHECK_OK(core_submit_all(s.core, &s.person, x, 3, NULL, NULL, s.now, ids, &s.e), &s.e);
    CHECK_OK(core_runs(s.core, &all, &page, &s.e), &s.e);
    CHECK_EQ(json_get_i64(page, "total", -1), 3);
    CHECK_STR(json_get_str(json_array_get(json_object_get(page, "runs"), 0), "id", ""), ids[2]);
    json_decref(page);
    json_decref(graph);
    json_decref(bad);
    stage_close(&s);
}

TEST(patches_make_variants, "SW1: variants share a snapshot and differ by their patch")
{
    struct stage s;
    struct puppet f;
    json_t *graph = small_graph(1), *patch = J("{'l':{'batch_size':5}}"),
           *wrong = J("{'x':{'a':1}}");
    struct core_submission x[2] = {
        {.graph = graph, .variant = 0, .repetition = -1, .patch = NULL},
        {.graph = graph, .variant = 1, .repetition = -1, .patch = patch}};
    char ids[2][33];
    stage_open(&s, 0);
    CHECK_OK(core_submit_all(s.core, &s.person, x, 2, NULL, NULL, s.now, ids, &s.e), &s.e);
    CHECK(strcmp(field(&s, ids[0], "graph_key"), field(&s, ids[1], "graph_key")) != 0);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    json_t *list = puppet_orders(&f);
    for (size_t i = 0; i < 2; i++) {
        const json_t *body = json_object_get(json_array_get(list, i), "body");
        const json_t *node =
            json_array_get(json_object_get(json_object_get(body, "graph"), "nodes"), 1);
        const json_t *params = json_object_get(json_object_get(node, "data"), "params");
        CHECK_EQ(json_get_i64(params, "batch_size", 0), i ? 5 : 1);
    }
    json_decref(list);
    x[1].patch = wrong;
    CHECK_EQ(core_submit_all(s.core, &s.person, x, 2, NULL, NULL, s.now, ids, &s.e), ST_INVALID);
    json_decref(graph);
    json_decref(patch);
    json_decref(wrong);
    puppet_close(&f);
    stage_close(&s);
}

TEST(
    secrets_are_not_stored,
    "H2: secrets are blank in the store; the run gets them while the server lives")
{
    struct stage s;
    struct puppet f;
    json_t *graph = J("{'nodes':[{'id':'a','type':'LLMChat','data':{'params':{'openai_api_key':"
                      "'sk-1','model':'m'}}}],'edges':[]}"),
           *reply, *stored;
    stage_open(&s, 0);
    struct core_submission x = {.graph = graph, .variant = -1, .repetition = -1};
    CHECK_OK(core_submit(s.core, &s.person, &x, s.now, &reply, &s.e), &s.e);
    CHECK_OK(core_graph(s.core, json_get_str(reply, "run_id", ""), &stored, &s.e), &s.e);
    char *text = json_text(stored, false);
    CHECK(!strstr(text, "sk-1"));
    mem_free(text);
    json_decref(stored);
    puppet_open(&f, &s, "local", 0, 0);
    CHECK(puppet_connect(&f));
    json_t *order = puppet_order(&f, "start");
    text = json_text(order, false);
    CHECK(strstr(text, "sk-1"));
    mem_free(text);
    json_decref(order);
    json_decref(reply);
    json_decref(graph);
    puppet_close(&f);
    stage_close(&s);
}
