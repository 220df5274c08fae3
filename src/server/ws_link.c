/* ws_link.c - see ws_link.h. */
#include "server/ws_link.h"

#include "base/err.h"
#include "base/mem.h"
#include "base/str.h"

#include <gnutls/crypto.h>
#include <stdio.h>
#include <string.h>
#include <wslay/wslay.h>

enum { READ_BYTES = 1 << 20 };

struct ws_link {
    struct ws_link_owner owner;
    wslay_event_context_ptr wslay;
    bool broken; /* the bytes end here */
    bool closing;
    uint64_t taken; /* bytes so far */
    /* wslay does not tell whether a frame was masked, so headers are followed here too. */
    uint64_t payload_left;
    uint8_t header[14];
    size_t header_n;
};

/* Length of a frame's header once its first two bytes are known. */
static size_t header_size(const uint8_t *h)
{
    size_t length = h[1] & 0x7f;
    return 2 + (length == 126 ? 2 : length == 127 ? 8 : 0) + (h[1] & 0x80 ? 4 : 0);
}

static uint64_t header_payload(const uint8_t *h)
{
    uint64_t length = h[1] & 0x7f;
    size_t n = length == 126 ? 2 : length == 127 ? 8 : 0;
    if (n)
        length = 0;
    for (size_t i = 0; i < n; i++)
        length = length << 8 | h[2 + i];
    return length;
}

/* Follows the frames in these bytes: false at the first one without a mask. */
static bool all_masked(struct ws_link *l, const uint8_t *data, size_t n)
{
    for (size_t i = 0; i < n;) {
        if (l->payload_left) {
            uint64_t skip = l->payload_left < n - i ? l->payload_left : n - i;
            l->payload_left -= skip;
            i += (size_t)skip;
            continue;
        }
        l->header[l->header_n++] = data[i++];
        if (l->header_n < 2)
            continue;
        if (!(l->header[1] & 0x80))
            return false;
        if (l->header_n == header_size(l->header)) {
            l->payload_left = header_payload(l->header);
            l->header_n = 0;
        }
    }
    return true;
}

static ssize_t take(wslay_event_context_ptr w, uint8_t *buf, size_t n, int flags, void *user)
{
    (void)flags;
    struct ws_link *l = user;
    int64_t got = l->broken ? -2 : l->owner.read(l->owner.ctx, buf, n);
    l->taken += got > 0 ? (uint64_t)got : 0;
    if (got > 0 && all_masked(l, buf, (size_t)got))
        return (ssize_t)got;
    if (got > 0) {
        ws_link_close(l, WS_CLOSE_PROTOCOL, "a client's frames are masked");
        wslay_event_shutdown_read(w);
        got = -1;
    } else if (got != -1) {
        l->broken = true;
    }
    wslay_event_set_error(w, got == -1 ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

static ssize_t give(wslay_event_context_ptr w, const uint8_t *data, size_t n, int flags, void *user)
{
    (void)flags;
    struct ws_link *l = user;
    int64_t put = l->broken ? -2 : l->owner.write(l->owner.ctx, data, n);
    if (put > 0)
        return (ssize_t)put;
    if (put != -1)
        l->broken = true;
    wslay_event_set_error(w, put == -1 ? WSLAY_ERR_WOULDBLOCK : WSLAY_ERR_CALLBACK_FAILURE);
    return -1;
}

static void
message(wslay_event_context_ptr w, const struct wslay_event_on_msg_recv_arg *m, void *user)
{
    (void)w;
    struct ws_link *l = user;
    if (l->closing || wslay_is_ctrl_frame(m->opcode))
        return;
    if (m->opcode != WSLAY_TEXT_FRAME) {
        ws_link_close(l, WS_CLOSE_NOT_TEXT, "messages are text");
        return;
    }
    char *text = mem_try_alloc(m->msg_length + 1);
    if (!text) {
        ws_link_close(l, WS_CLOSE_TOO_LARGE, "no memory for the message");
        return;
    }
    if (m->msg_length)
        memcpy(text, m->msg, m->msg_length);
    text[m->msg_length] = 0;
    l->owner.message(l->owner.ctx, text, m->msg_length);
    mem_free(text);
}

struct ws_link *ws_link_new(const struct ws_link_owner *owner, int64_t message_max_bytes)
{
    struct ws_link *l = mem_alloc(sizeof *l);
    struct wslay_event_callbacks calls = {
        .recv_callback = take, .send_callback = give, .on_msg_recv_callback = message};
    l->owner = *owner;
    int rc = wslay_event_context_server_init(&l->wslay, &calls, l);
    ASSERT(rc == 0);
    wslay_event_config_set_max_recv_msg_length(l->wslay, (uint64_t)message_max_bytes);
    return l;
}

void ws_link_free(struct ws_link *l)
{
    if (!l)
        return;
    wslay_event_context_free(l->wslay);
    mem_free(l);
}

/* Over when the bytes are, or when both sides have said so. */
static bool is_over(const struct ws_link *l)
{
    return l->broken ||
           (wslay_event_get_close_sent(l->wslay) && wslay_event_get_close_received(l->wslay) &&
            !wslay_event_want_write(l->wslay));
}

/* What comes after the end of interest is read all the same: closing a socket with unread bytes
 * resets it, and the other side would never see why. */
static void throw_away(struct ws_link *l)
{
    uint8_t buf[4096];
    int64_t got;
    do
        got = l->owner.read(l->owner.ctx, buf, sizeof buf);
    while (got > 0);
    if (got != -1)
        l->broken = true;
}

/* wslay comes back after a piece of a header, so it is called until nothing moves; but not for
 * longer than READ_BYTES, since others wait. */
bool ws_link_read(struct ws_link *l)
{
    uint64_t first = l->taken, before;
    do {
        before = l->taken;
        if (wslay_event_get_read_enabled(l->wslay) && wslay_event_recv(l->wslay) != 0)
            l->broken = true;
    } while (l->taken != before && l->taken - first < READ_BYTES && !l->broken);
    if (!l->broken && !wslay_event_get_read_enabled(l->wslay)) {
        l->closing = true;
        throw_away(l);
    }
    return !is_over(l);
}

bool ws_link_write(struct ws_link *l)
{
    if (wslay_event_want_write(l->wslay) && wslay_event_send(l->wslay) != 0)
        l->broken = true;
    return !is_over(l);
}

bool ws_link_wants_write(const struct ws_link *l)
{
    return wslay_event_want_write(l->wslay);
}

size_t ws_link_room(const struct ws_link *l, size_t frames_max)
{
    size_t waiting = wslay_event_get_queued_msg_count(l->wslay);
    bool full = l->closing || waiting >= frames_max ||
                wslay_event_get_queued_msg_length(l->wslay) >= WS_QUEUE_BYTES;
    return full ? 0 : frames_max - waiting;
}

void ws_link_send(struct ws_link *l, const char *text, size_t n)
{
    struct wslay_event_msg m = {WSLAY_TEXT_FRAME, (const uint8_t *)text, n};
    if (!l->closing && wslay_event_queue_msg(l->wslay, &m) != 0)
        l->broken = true;
}

void ws_link_ping(struct ws_link *l)
{
    struct wslay_event_msg m = {WSLAY_PING, NULL, 0};
    if (!l->closing && wslay_event_queue_msg(l->wslay, &m) != 0)
        l->broken = true;
}

void ws_link_close(struct ws_link *l, int code, const char *reason)
{
    if (l->closing)
        return;
    l->closing = true;
    if (wslay_event_queue_close(
            l->wslay, (uint16_t)code, (const uint8_t *)reason, strlen(reason)) != 0)
        l->broken = true;
}

bool ws_link_is_closing(const struct ws_link *l)
{
    return l->closing;
}

bool ws_accept_key(const char *key, char out[32])
{
    /* 16 bytes are 22 digits and two equals signs. */
    size_t n = key ? strlen(key) : 0;
    if (n != 24 || key[22] != '=' || key[23] != '=')
        return false;
    for (size_t i = 0; i < 22; i++)
        if (base64_digit(key[i]) < 0)
            return false;
    char text[64];
    (void)snprintf(text, sizeof text, "%s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key);
    uint8_t digest[20];
    gnutls_datum_t raw = {digest, sizeof digest}, base64 = {NULL, 0};
    if (gnutls_hash_fast(GNUTLS_DIG_SHA1, text, strlen(text), digest) != 0 ||
        gnutls_base64_encode2(&raw, &base64) != 0)
        return false;
    (void)snprintf(out, 32, "%.*s", (int)base64.size, (const char *)base64.data);
    gnutls_free(base64.data);
    return true;
}
