/* ws_test.c - frames, actions and both forms of /ws/execution, against runs in memory. */
#include "base/mem.h"
#include "server/aliases.h"
#include "server/ws.h"
#include "server/ws_link.h"
#include "server/ws_test_support.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

/* ---- a client's side of a link, in memory ---- */

struct wire {
    uint8_t in[300000], out[3000000]; /* to the server, from it */
    size_t in_n, in_at, out_n, piece;
    bool shut; /* the server's writes do not fit any more */
    char message[70000];
    int messages;
    struct ws_link *link;
};

static int64_t wire_read(void *ctx, uint8_t *buf, size_t n)
{
    struct wire *w = ctx;
    size_t some = w->in_n - w->in_at;
    if (some == 0)
        return -1;
    some = w->piece && some > w->piece ? w->piece : some;
    some = some > n ? n : some;
    memcpy(buf, w->in + w->in_at, some);
    w->in_at += some;
    return (int64_t)some;
}

static int64_t wire_write(void *ctx, const uint8_t *data, size_t n)
{
    struct wire *w = ctx;
    if (w->shut)
        return -1;
    memcpy(w->out + w->out_n, data, n);
    w->out_n += n;
    return (int64_t)n;
}

static void wire_message(void *ctx, const char *text, size_t n)
{
    struct wire *w = ctx;
    w->messages++;
    (void)snprintf(w->message, sizeof w->message, "%.*s", (int)n, text);
}

static struct wire *wire_new(int64_t max)
{
    struct wire *w = mem_alloc(sizeof *w);
    struct ws_link_owner owner = {w, wire_read, wire_write, wire_message};
    w->link = ws_link_new(&owner, max);
    return w;
}

static void wire_free(struct wire *w)
{
    ws_link_free(w->link);
    mem_free(w);
}

/* Appends a client's frame; `first` is its first byte. */
static void put_frame(struct wire *w, int first, bool masked, const char *data, size_t n)
{
    static const uint8_t mask[4] = {1, 2, 3, 4};
    w->in[w->in_n++] = (uint8_t)first;
    w->in[w->in_n++] = (uint8_t)((masked ? 0x80 : 0) | (n < 126 ? n : n < 65536 ? 126 : 127));
    for (int i = n < 126 ? 0 : n < 65536 ? 2 : 8; i > 0; i--)
        w->in[w->in_n++] = (uint8_t)((uint64_t)n >> (8 * (i - 1)));
    if (masked) {
        memcpy(w->in + w->in_n, mask, 4);
        w->in_n += 4;
    }
    for (size_t i = 0; i < n; i++)
        w->in[w->in_n++] = (uint8_t)(data[i] ^ (masked ? mask[i % 4] : 0));
}

/* The close code that the server sent; 0: none. Its frames here are short. */
static int close_code(const struct wire *w)
{
    for (size_t at = 0; at + 2 <= w->out_n; at += 2 + (w->out[at + 1] & 0x7fu))
        if ((w->out[at] & 0xf) == 8)
            return w->out[at + 2] << 8 | w->out[at + 3];
    return 0;
}

static bool turn(struct wire *w)
{
    bool read = ws_link_read(w->link), write = ws_link_write(w->link);
    return read && write;
}

TEST(accept_key, "promise-P15: a handshake's key is answered as RFC 6455 says, another is refused")
{
    char out[32];
    CHECK(ws_accept_key("dGhlIHNhbXBsZSBub25jZQ==", out));
    CHECK_STR(out, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    CHECK(!ws_accept_key(NULL, out));
    CHECK(!ws_accept_key("dGhlIHNhbXBsZSBub25jZQ=", out));
    CHECK(!ws_accept_key("dGhlIHNhbXBs\r\nBub25jZQ==", out));
}

TEST(
    messages_in_any_cut,
    "promise-P15: a message arrives whole, in one frame or several, however cut")
{
    struct wire *w = wire_new(65536);
    char big[60000];
    memset(big, 'x', sizeof big);
    w->piece = 1;
    put_frame(w, 0x81, true, "hello", 5);
    put_frame(w, 0x01, true, "one, ", 5);
    put_frame(w, 0x89, true, "ping", 4); /* between the parts */
    put_frame(w, 0x80, true, "two", 3);
    CHECK(turn(w));
    CHECK_EQ(w->messages, 2);
    CHECK_STR(w->message, "one, two");
    CHECK_EQ(w->out[0], 0x8a); /* the pong, with what the ping said */
    CHECK_EQ(memcmp(w->out + 2, "ping", 4), 0);
    put_frame(w, 0x81, true, big, sizeof big);
    CHECK(turn(w));
    CHECK_EQ(strlen(w->message), sizeof big);
    wire_free(w);
}

static int code_of(int first, bool masked, const char *data, size_t n, int64_t max)
{
    struct wire *w = wire_new(max);
    put_frame(w, first, masked, data, n);
    put_frame(w, 0x81, true, "{}", 2);
    (void)turn(w);
    int code = close_code(w), messages = w->messages;
    bool closing = ws_link_is_closing(w->link);
    CHECK_EQ(w->in_at, w->in_n); /* unread bytes would reset the socket */
    wire_free(w);
    CHECK_EQ(messages, 0);
    CHECK(closing);
    return code;
}

TEST(
    close_codes,
    "H4 promise-P15: what a client may not send closes its connection, with the code for it")
{
    char big[2000];
    memset(big, 'x', sizeof big);
    CHECK_EQ(code_of(0x81, false, "{}", 2, 1000), 1002);
    CHECK_EQ(code_of(0x82, true, "{}", 2, 1000), 1003);
    CHECK_EQ(code_of(0x81, true, "\xff\xfe", 2, 1000), 1007);
    CHECK_EQ(code_of(0x81, true, big, sizeof big, 1000), 1009);
    CHECK_EQ(code_of(0xf1, true, "{}", 2, 1000), 1002); /* reserved bits */
    CHECK_EQ(code_of(0x83, true, "{}", 2, 1000), 1002); /* reserved opcode */
}

TEST(closing, "promise-P15: a close is answered, and ends the link")
{
    struct wire *w = wire_new(1000);
    put_frame(w, 0x88, true, "\x03\xe8", 2);
    CHECK(!turn(w));
    CHECK_EQ(close_code(w), 1000);
    wire_free(w);
    w = wire_new(1000);
    ws_link_close(w->link, 4401, "token");
    CHECK(turn(w)); /* waits for the other side */
    CHECK_EQ(close_code(w), 4401);
    put_frame(w, 0x88, true, "\x11\x31", 2);
    CHECK(!turn(w));
    wire_free(w);
}

TEST(
    stalled_reader,
    "promise-P15: what waits for a client that does not read is bounded, in frames and in bytes")
{
    struct wire *w = wire_new(1000);
    char big[200000];
    memset(big, 'x', sizeof big);
    w->shut = true;
    for (int i = 0; i < WS_FRAMES_MAX; i++) {
        CHECK_EQ(ws_link_room(w->link, WS_FRAMES_MAX), WS_FRAMES_MAX - i);
        ws_link_send(w->link, "{}", 2);
        (void)ws_link_write(w->link);
    }
    CHECK_EQ(ws_link_room(w->link, WS_FRAMES_MAX), 0);
    w->shut = false;
    CHECK(ws_link_write(w->link));
    CHECK_EQ(ws_link_room(w->link, WS_FRAMES_MAX), WS_FRAMES_MAX);
    w->shut = true;
    int n = 0;
    for (; ws_link_room(w->link, WS_FRAMES_MAX); n++)
        ws_link_send(w->link, big, sizeof big);
    CHECK(n <= 7);
    wire_free(w);
}

/* ---- talks ---- */

struct stage {
    struct fake f;
    struct ws_talk t;
};

static void begin(struct stage *s)
{
    struct actor who = {.role = ROLE_PAGE, .name = "page"};
    fake_init(&s->f);
    ws_talk_init(&s->t, &s->f.runs, &who, "ws-1", fake_send, &s->f);
}

static void say(struct stage *s, const char *text)
{
    ws_talk_message(&s->t, text, strlen(text));
    (void)ws_talk_pump(&s->t, WS_FRAMES_MAX);
}

static json_t *json(const char *text)
{
    struct err e;
    json_t *j = NULL;
    CHECK(json_parse(text, strlen(text), "test", &j, &e) == ST_OK);
    return j;
}

/* The frames since the last call, as one text. */
static const char *heard(struct stage *s)
{
    static char out[20000];
    size_t n = 0, i;
    json_t *frame;
    out[0] = 0;
    json_array_foreach(s->f.frames, i, frame)
    {
        char *text = json_text(frame, false);
        n += (size_t)snprintf(out + n, sizeof out - n, "%s%s", i ? "\n" : "", text);
        mem_free(text);
    }
    (void)json_array_clear(s->f.frames);
    return out;
}

#define EXECUTE_142                                                                                \
    "{\"action\":\"execute\",\"nodes\":[{\"id\":\"a\"}],\"edges\":[],\"presets\":[],"              \
    "\"run_id\":\"my-run\",\"graph_id\":\"tab-7\",\"device\":\"cuda:1\",\"verbose_mode\":true,"    \
    "\"record_outputs\":true,\"error_mode\":\"continue\",\"max_retries\":2,"                       \
    "\"backward_mode\":false,\"auto_backward\":false,\"changed_nodes\":[\"a\"]}"

TEST(
    execute_142,
    "promise-P15: execute of 1.4.2 becomes a run of the interactive lane with the same meaning")
{
    struct stage s;
    begin(&s);
    say(&s, EXECUTE_142);
    CHECK_EQ(s.f.n_runs, 1);
    CHECK_STR(heard(&s), "");
    const json_t *o = s.f.run[0].options;
    CHECK_STR(json_get_str(o, "lane", ""), "interactive");
    CHECK_STR(json_get_str(o, "device", ""), "cuda:1");
    CHECK_STR(json_get_str(o, "graph_id", ""), "tab-7");
    CHECK_STR(json_get_str(o, "error_mode", ""), "continue");
    CHECK_EQ(json_get_i64(o, "max_retries", 0), 2);
    CHECK(json_get_bool(o, "weights_persistent", false)); /* its default on a canvas */
    CHECK(json_get_bool(o, "verbose", false));
    CHECK(json_get_bool(o, "record_outputs", false));
    CHECK_STR(json_string_value(json_array_get(json_object_get(o, "changed_nodes"), 0)), "a");
    CHECK_EQ(json_object_size(o), 11);
    CHECK(s.f.run[0].replace);
    CHECK_STR(s.f.alias, "my-run");
    CHECK_STR(s.f.alias_run, s.f.run[0].id);
    fake_event(&s.f, 0, "execution_start", json("{\"run_id\":\"x\"}"));
    (void)ws_talk_pump(&s.t, WS_FRAMES_MAX);
    CHECK_STR(heard(&s), "{\"type\":\"execution_start\",\"run_id\":\"my-run\"}");
    fake_event(&s.f, 0, "execution_complete", json("{}"));
    (void)ws_talk_pump(&s.t, WS_FRAMES_MAX);
    CHECK_STR(heard(&s), "{\"type\":\"execution_complete\"}");
    ws_talk_end(&s.t);
    CHECK(!s.f.run[0].cancelled); /* it was over */
    fake_release(&s.f);
}

TEST(node_status_142, "promise-P15: node_status is said in the words of 1.4.2, field by field")
{
    struct stage s;
    begin(&s);
    say(&s, EXECUTE_142);
    fake_event(
        &s.f, 0, "node_status",
        json(
            "{\"node_id\":\"n\",\"status\":\"progress\",\"outputs\":[{\"output_kind\":\"progress\","
            "\"progress\":{\"event\":\"epoch\",\"epoch\":1,\"total_epochs\":2,\"loss\":0.5}}]}"));
    fake_event(
        &s.f, 0, "node_status",
        json("{\"node_id\":\"n\",\"status\":\"completed\",\"outputs\":["
             "{\"output_kind\":\"text\",\"text\":\"one\"},{\"output_kind\":\"text\",\"text\":"
             "\"two\"},"
             "{\"output_kind\":\"image\",\"port\":\"image\",\"image\":{\"format\":\"png\","
             "\"encoding\":"
             "\"base64\",\"data\":\"iVBOR\"}},{\"output_kind\":\"tensor_summary\",\"port\":\"out\","
             "\"tensor_summary\":{\"type\":\"tensor\",\"shape\":[2],\"dtype\":\"float32\"}},"
             "{\"output_kind\":\"text\",\"port\":\"x\",\"elided\":true,\"bytes\":9,\"cap_bytes\":1}"
             "]}"));
    fake_event(
        &s.f, 0, "node_status", json("{\"node_id\":\"m\",\"status\":\"error\",\"error\":\"no\"}"));
    fake_event(&s.f, 0, "node_status", json("{\"node_id\":\"k\",\"status\":\"interrupted\"}"));
    fake_event(&s.f, 0, "metric", json("{\"points\":[]}"));
    fake_event(
        &s.f, 0, "run_warning",
        json("{\"kind\":\"device_fallback\",\"message\":\"no card\",\"node_id\":\"n\"}"));
    fake_event(
        &s.f, 0, "run_warning", json("{\"kind\":\"device_fallback\",\"message\":\"no card\"}"));
    fake_event(&s.f, 0, "execution_error", json("{\"error\":\"bad\",\"code\":\"x\"}"));
    (void)ws_talk_pump(&s.t, WS_FRAMES_MAX);
    CHECK_STR(
        heard(&s),
        "{\"type\":\"node_status\",\"node_id\":\"n\",\"status\":\"progress\",\"progress\":{"
        "\"event\":"
        "\"epoch\",\"epoch\":1,\"total_epochs\":2,\"loss\":0.5}}\n"
        "{\"type\":\"node_status\",\"node_id\":\"n\",\"status\":\"completed\",\"log\":"
        "\"one\\ntwo\","
        "\"image\":\"iVBOR\",\"output_summary\":{\"out\":{\"type\":\"tensor\",\"shape\":[2],"
        "\"dtype\":\"float32\"}}}\n"
        "{\"type\":\"node_status\",\"node_id\":\"m\",\"status\":\"error\",\"error\":\"no\"}\n"
        "{\"type\":\"node_status\",\"node_id\":\"k\",\"status\":\"skipped\"}\n"
        "{\"type\":\"node_status\",\"node_id\":\"n\",\"status\":\"running\",\"log\":\"no card\"}\n"
        "{\"type\":\"execution_error\",\"error\":\"bad\"}");
    fake_release(&s.f);
}

TEST(
    second_execute_142,
    "promise-P15: in the form of 1.4.2 a second execute cancels the first, and so does closing")
{
    struct stage s;
    begin(&s);
    say(&s, EXECUTE_142);
    say(&s, EXECUTE_142);
    CHECK_EQ(s.f.n_runs, 2);
    CHECK(s.f.run[0].cancelled);
    CHECK(!s.f.run[1].cancelled);
    CHECK_STR(heard(&s), "{\"type\":\"execution_stopped\"}");
    ws_talk_end(&s.t);
    CHECK(s.f.run[1].cancelled);
    fake_release(&s.f);
}

TEST(stop_142, "promise-P15: stop cancels, and is answered also where nothing runs")
{
    struct stage s;
    begin(&s);
    say(&s, "{\"action\":\"stop\"}");
    CHECK_STR(heard(&s), "{\"type\":\"execution_stopped\"}");
    say(&s, EXECUTE_142);
    say(&s, "{\"action\":\"stop\"}");
    CHECK(s.f.run[0].cancelled);
    CHECK_STR(heard(&s), "");
    fake_event(&s.f, 0, "execution_stopped", json("{\"reason\":\"cancelled\"}"));
    (void)ws_talk_pump(&s.t, WS_FRAMES_MAX);
    CHECK_STR(heard(&s), "{\"type\":\"execution_stopped\"}");
    say(&s, "{\"action\":\"clear_cache\"}");
    CHECK_STR(heard(&s), "{\"type\":\"cache_cleared\"}");
    CHECK_STR(s.f.cleared, "tab-7");
    fake_release(&s.f);
}

TEST(
    refused,
    "promise-P15: a refused execute and a bad message are said in a frame; the connection goes on")
{
    struct stage s;
    begin(&s);
    s.f.refuse = "2 canvas runs are running already";
    say(&s, EXECUTE_142);
    CHECK_STR(
        heard(&s),
        "{\"type\":\"execution_error\",\"error\":\"2 canvas runs are running already\"}");
    say(&s, "{\"action\":\"execute\",\"nodes\":[],\"edges\":[],\"subgraphs\":[]}");
    CHECK_STR(
        heard(&s), "{\"type\":\"execution_error\",\"error\":\"2 canvas runs are running already\","
                   "\"rejected\":true}");
    static const char *const bad[] = {
        "",
        "{",
        "[]",
        "7",
        "\"x\"",
        "{}",
        "{\"action\":7}",
        "{\"action\":\"fly\"}",
        "{\"action\":\"attach\"}",
        "{\"action\":\"attach\",\"run_id\":\"../x\"}"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        say(&s, bad[i]);
        CHECK(str_starts(heard(&s), "{\"type\":\"error\",\"error\":"));
    }
    fake_release(&s.f);
}

TEST(
    newer_execute, "R1 promise-P15: execute of the newer editor attaches, follows the graph's own "
                   "device, cancels nothing")
{
    struct stage s;
    begin(&s);
    say(&s,
        "{\"action\":\"execute\",\"nodes\":[{}],\"edges\":[],\"device\":\"cpu\",\"seed\":7,"
        "\"settings\":{\"device\":\"cuda:1\"},\"graph_id\":\"g\",\"weights_persistent\":false}");
    CHECK_STR(
        heard(&s), "{\"type\":\"attached\",\"run_id\":\"00000000000000000000000000000001\","
                   "\"cursor\":0,\"status\":\"queued\"}");
    CHECK_STR(json_get_str(s.f.run[0].options, "device", ""), "cuda:1");
    CHECK_EQ(json_get_i64(s.f.run[0].options, "seed", 0), 7);
    CHECK(!json_get_bool(s.f.run[0].options, "weights_persistent", true));
    CHECK(!s.f.run[0].replace);
    fake_event(&s.f, 0, "metric", json("{\"points\":[]}"));
    (void)ws_talk_pump(&s.t, WS_FRAMES_MAX);
    CHECK_STR(
        heard(&s), "{\"points\":[],\"type\":\"metric\",\"run_id\":"
                   "\"00000000000000000000000000000001\",\"cursor\":1}");
    say(&s, "{\"action\":\"execute\",\"nodes\":[{}],\"edges\":[]}");
    CHECK(str_starts(
        heard(&s), "{\"type\":\"detached\",\"run_id\":\"00000000000000000000000000000001\"}\n"
                   "{\"type\":\"attached\""));
    say(&s, "{\"action\":\"stop\"}");
    CHECK_STR(
        heard(&s), "{\"type\":\"cancel_ack\",\"run_id\":\"00000000000000000000000000000002\","
                   "\"status\":\"cancelled\",\"cancelled\":true}");
    say(&s, "{\"action\":\"detach\"}");
    CHECK_STR(heard(&s), "{\"type\":\"detached\",\"run_id\":\"00000000000000000000000000000002\"}");
    say(&s, "{\"action\":\"cancel\"}");
    CHECK_STR(heard(&s), "{\"type\":\"execution_stopped\",\"reason\":\"not_running\"}");
    ws_talk_end(&s.t);
    CHECK(!s.f.run[0].cancelled);
    fake_release(&s.f);
}

TEST(
    attach_replays, "R3 promise-P12: attach replays what is after the cursor, without gaps, at the "
                    "pace of its reader")
{
    struct stage s;
    begin(&s);
    say(&s, EXECUTE_142);
    for (int i = 0; i < 1000; i++)
        fake_event(&s.f, 0, "metric", json("{\"points\":[]}"));
    struct ws_talk viewer;
    ws_talk_init(&viewer, &s.f.runs, &s.t.who, "ws-2", fake_send, &s.f);
    const char *attach =
        "{\"action\":\"attach\",\"run_id\":\"00000000000000000000000000000001\",\"cursor\":10}";
    ws_talk_message(&viewer, attach, strlen(attach));
    CHECK_STR(
        heard(&s), "{\"type\":\"attached\",\"run_id\":\"00000000000000000000000000000001\","
                   "\"cursor\":10,\"status\":\"running\"}");
    int64_t next = 11;
    while (ws_talk_pump(&viewer, 37)) {
        json_t *frame;
        size_t i;
        CHECK(json_array_size(s.f.frames) <= 37);
        json_array_foreach(s.f.frames, i, frame) CHECK_EQ(json_get_i64(frame, "cursor", 0), next++);
        (void)json_array_clear(s.f.frames);
    }
    CHECK_EQ(next + (int64_t)json_array_size(s.f.frames), 1001);
    CHECK(!ws_talk_pump(&viewer, 0) || *viewer.run_id);
    ws_talk_end(&viewer);
    CHECK(!s.f.run[0].cancelled);
    fake_release(&s.f);
}

TEST(late_142, "promise-P15: a client of 1.4.2 that is far behind skips progress, never an end")
{
    struct stage s;
    begin(&s);
    say(&s, EXECUTE_142);
    for (int i = 0; i < 600; i++)
        fake_event(&s.f, 0, "node_status", json("{\"node_id\":\"n\",\"status\":\"progress\"}"));
    fake_event(&s.f, 0, "node_status", json("{\"node_id\":\"n\",\"status\":\"completed\"}"));
    fake_event(&s.f, 0, "execution_complete", json("{}"));
    while (ws_talk_pump(&s.t, WS_FRAMES_MAX)) {
    }
    size_t n = json_array_size(s.f.frames);
    CHECK(n < 100 && n >= 3);
    CHECK_STR(json_get_str(json_array_get(s.f.frames, n - 1), "type", ""), "execution_complete");
    fake_release(&s.f);
}

TEST(
    aliases,
    "promise-P15: an editor's own name for a run is known, a name used again means its last run")
{
    struct aliases a;
    char out[129];
    aliases_init(&a);
    CHECK_STR(aliases_find(&a, "mine", out), "mine");
    aliases_add(&a, "mine", "1");
    aliases_add(&a, "mine", "2");
    CHECK_STR(aliases_find(&a, "mine", out), "2");
    for (int i = 0; i < ALIASES_MAX; i++)
        aliases_add(&a, "other", "3");
    CHECK_STR(aliases_find(&a, "mine", out), "mine");
    aliases_release(&a);
}
