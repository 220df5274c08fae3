/* ws_fuzz.c - any bytes as a client of /ws/execution: frames, then messages, against fake runs.
 *
 * The first byte says whether the rest is a stream of frames (even) or one message (odd); frames
 * are read in pieces, so that every cut of a header is met. */
#include "base/mem.h"
#include "server/ws_link.h"
#include "server/ws_test_support.h"

#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct peer {
    const uint8_t *data;
    size_t n, at, piece, out;
    struct ws_link *link;
    struct ws_talk talk;
    struct fake fake;
};

static int64_t peer_read(void *ctx, uint8_t *buf, size_t n)
{
    struct peer *p = ctx;
    size_t some = p->n - p->at;
    if (some > p->piece)
        some = p->piece;
    if (some > n)
        some = n;
    if (some == 0)
        return p->at == p->n ? 0 : -1;
    memcpy(buf, p->data + p->at, some);
    p->at += some;
    return (int64_t)some;
}

static int64_t peer_write(void *ctx, const uint8_t *data, size_t n)
{
    struct peer *p = ctx;
    (void)data;
    p->out += n;
    return (int64_t)n;
}

static void peer_message(void *ctx, const char *text, size_t n)
{
    struct peer *p = ctx;
    ws_talk_message(&p->talk, text, n);
    (void)ws_talk_pump(&p->talk, ws_link_room(p->link, 16));
}

static void peer_send(void *ctx, json_t *frame)
{
    struct peer *p = ctx;
    char *text = json_text(frame, false);
    ASSERT(text && json_is_string(json_object_get(frame, "type")));
    ws_link_send(p->link, text, strlen(text));
    mem_free(text);
    json_decref(frame);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct actor who = {.role = ROLE_PAGE, .name = "page"};
    struct peer *p = mem_alloc(sizeof *p);
    if (size == 0) {
        mem_free(p);
        return 0;
    }
    p->data = data + 1;
    p->n = size - 1;
    p->piece = 1 + (data[0] >> 1);
    fake_init(&p->fake);
    struct ws_link_owner owner = {p, peer_read, peer_write, peer_message};
    p->link = ws_link_new(&owner, 4096);
    ws_talk_init(&p->talk, &p->fake.runs, &who, "ws-1", peer_send, p);
    if (data[0] & 1) {
        peer_message(p, (const char *)p->data, p->n);
        (void)ws_link_write(p->link);
    } else {
        for (size_t i = 0; i <= p->n && ws_link_read(p->link) && ws_link_write(p->link); i++) {
        }
    }
    ws_talk_end(&p->talk);
    ws_link_free(p->link);
    fake_release(&p->fake);
    mem_free(p);
    return 0;
}
