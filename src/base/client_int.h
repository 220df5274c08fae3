/* client_int.h - inside of the HTTP client. */
#ifndef BASE_CLIENT_INT_H
#define BASE_CLIENT_INT_H

#include "base/client.h"

#include <curl/curl.h>

struct client {
    CURL *curl;
    struct curl_slist *headers;
    char *url, *secret, *ca, *proxy;
    char *certificate; /* of the local server */
    bool local, stopped;
    int64_t reply_bytes_max;
    bool (*stop)(void *ctx);
    void *stop_ctx;
    char said[CURL_ERROR_SIZE]; /* libcurl's own words; they hold no headers */
};

#endif
