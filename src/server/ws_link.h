/* ws_link.h - one WebSocket connection's bytes: frames in, messages out (RFC 6455, libwslay
 * inside).
 *
 * A link reads and writes through two functions of its owner, so that sockets, tests and fuzzers
 * serve alike. It answers pings, closes by the protocol, refuses frames without a mask, binary
 * messages, text that is not UTF-8 and messages above its limit, each with its close code.
 *
 * One thread at a time. The owner's `message` is called from within ws_link_read and may send.
 */
#ifndef SERVER_WS_LINK_H
#define SERVER_WS_LINK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum ws_close_code {
    WS_CLOSE_GOING_AWAY = 1001,
    WS_CLOSE_PROTOCOL = 1002,
    WS_CLOSE_NOT_TEXT = 1003,
    WS_CLOSE_TOO_LARGE = 1009,
    WS_CLOSE_HOST = 4003,
    WS_CLOSE_TOKEN = 4401
};
enum { WS_QUEUE_BYTES = 1 << 20 }; /* no further message is queued above this */

struct ws_link;
struct ws_link_owner {
    void *ctx;
    /* As recv and send: bytes moved, 0 when the other side ended (read), -1 for "not now" and -2
     * for a broken connection. */
    int64_t (*read)(void *ctx, uint8_t *buf, size_t n);
    int64_t (*write)(void *ctx, const uint8_t *data, size_t n);
    void (*message)(void *ctx, const char *text, size_t n); /* a whole text, NUL after it */
};
struct ws_link *ws_link_new(const struct ws_link_owner *owner, int64_t message_max_bytes);
void ws_link_free(struct ws_link *l);

/* Takes what there is. False: the connection is over. */
bool ws_link_read(struct ws_link *l);
/* Gives what fits. False: the connection is over. */
bool ws_link_write(struct ws_link *l);
bool ws_link_wants_write(const struct ws_link *l);
/* How many messages may be queued now: at most frames_max wait, and none above WS_QUEUE_BYTES. */
size_t ws_link_room(const struct ws_link *l, size_t frames_max);
void ws_link_send(struct ws_link *l, const char *text, size_t n);
void ws_link_ping(struct ws_link *l);
/* Says why, drops what waits, and ends once the other side has answered or gone. */
void ws_link_close(struct ws_link *l, int code, const char *reason);
bool ws_link_is_closing(const struct ws_link *l);

/* The answer to a handshake's key, 28 characters and a NUL; false when the key is not 16 bytes in
 * base64. */
bool ws_accept_key(const char *key, char out[32]);

#endif
