/* auth_test.c - tokens and keys over a restart; settings; secrets. */
#define _GNU_SOURCE /* memmem */

#include "server/auth.h"
#include "server/config.h"
#include "server/store.h"

#include "base/env.h"
#include "base/json.h"
#include "base/mem.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static struct auth *open_auth(struct store **s)
{
    struct err e = {0};
    struct auth *a;
    char path[1100];
    const struct store_options fast = {.fast = true};
    (void)path_join(test_dir(), "snug.db", path, sizeof path);
    CHECK_OK(store_open(path, &fast, s, &e), &e);
    CHECK_OK(auth_open(*s, test_dir(), &a, &e), &e);
    return a;
}

static void close_auth(struct auth *a, struct store *s)
{
    auth_close(a);
    store_close(s);
}

static enum role role_of(struct auth *a, const char *token, int64_t now_us)
{
    struct actor who = {0};
    auth_who(a, token, now_us, &who);
    return who.role;
}

/* Whether any file below the test's folder holds the text. */
static bool anywhere(const char *text)
{
    static const char *const files[] = {"snug.db", "snug.db-wal", "snug.db-shm"};
    bool found = false;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        char path[1100], *data;
        size_t n;
        struct err e = {0};
        (void)path_join(test_dir(), files[i], path, sizeof path);
        if (file_read(path, 64 << 20, &data, &n, &e) != ST_OK)
            continue;
        found = found || memmem(data, n, text, strlen(text));
        mem_free(data);
    }
    return found;
}

TEST(keys_survive, "H2: keys hold over a restart, are stored as hashes only, and end when revoked")
{
    struct store *s;
    struct err e = {0};
    struct actor who = {0};
    char token[SECRET_BYTES], other[SECRET_BYTES], page[SECRET_BYTES], owner[SECRET_BYTES], id[33];
    json_t *row, *row2, *rows;
    struct auth *a = open_auth(&s);
    CHECK_OK(auth_key_mint(a, "ada", true, token, &row, &e), &e);
    CHECK_EQ(auth_key_mint(a, "ada", true, other, &row2, &e), ST_CONFLICT);
    CHECK_EQ(auth_key_mint(a, "a b", true, other, &row2, &e), ST_INVALID);
    CHECK_EQ(auth_key_mint(a, "", true, other, &row2, &e), ST_INVALID);
    CHECK(strncmp(token, "snk_", 4) == 0 && strlen(token) == 47);
    CHECK(!anywhere(token) && !anywhere(token + 12));
    CHECK(strncmp(json_get_str(row, "prefix", ""), token, 12) == 0);
    (void)snprintf(id, sizeof id, "%s", json_get_str(row, "id", ""));
    (void)snprintf(page, sizeof page, "%s", auth_page_token(a));
    (void)snprintf(owner, sizeof owner, "%s", auth_owner_token(a));
    close_auth(a, s);
    a = open_auth(&s);
    auth_who(a, token, 1, &who);
    CHECK_EQ(who.role, ROLE_KEY);
    CHECK(who.exec);
    CHECK_STR(who.name, "ada");
    CHECK_EQ(role_of(a, page, 1), ROLE_NOBODY); /* new at each start */
    CHECK_EQ(role_of(a, owner, 1), ROLE_NOBODY);
    CHECK_EQ(role_of(a, auth_owner_token(a), 1), ROLE_OWNER);
    CHECK_EQ(role_of(a, "", 1), ROLE_NOBODY);
    CHECK_OK(auth_key_revoke(a, id, &e), &e);
    CHECK_OK(auth_key_revoke(a, id, &e), &e);
    CHECK_EQ(auth_key_revoke(a, "0123", &e), ST_NOT_FOUND);
    CHECK_EQ(role_of(a, token, 1), ROLE_NOBODY);
    CHECK_OK(auth_keys(a, &rows, &e), &e);
    CHECK_EQ(json_array_size(rows), 1);
    CHECK(json_is_number(json_object_get(json_array_get(rows, 0), "revoked_at")));
    close_auth(a, s);
    a = open_auth(&s);
    CHECK_EQ(role_of(a, token, 1), ROLE_NOBODY);
    close_auth(a, s);
    json_decref(row);
    json_decref(rows);
}

TEST(session_file, "H2: session.token is the owner's alone, new at each start, gone at the end")
{
    struct store *s;
    struct stat st;
    struct err e = {0};
    char path[1100], *text;
    size_t n;
    struct auth *a = open_auth(&s);
    (void)path_join(test_dir(), "session.token", path, sizeof path);
    CHECK_EQ(stat(path, &st), 0);
    CHECK_EQ(st.st_mode & 0777, 0600);
    CHECK_OK(file_read(path, 1000, &text, &n, &e), &e);
    CHECK_STR(text, auth_owner_token(a));
    close_auth(a, s);
    CHECK(stat(path, &st) != 0);
    mem_free(text);
}

TEST(join_tokens, "W6 H2: a join token holds once or until its date, also over a restart")
{
    struct store *s;
    struct err e = {0};
    char once[SECRET_BYTES], dated[SECRET_BYTES], once_id[33], dated_id[33], pool[65] = "";
    struct auth *a = open_auth(&s);
    struct auth_join one = {.name = "box", .once = true};
    struct auth_join until = {.pool = "night", .expires_us = 1000};
    CHECK_OK(auth_join_mint(a, &one, once_id, once, &e), &e);
    CHECK_OK(auth_join_mint(a, &until, dated_id, dated, &e), &e);
    close_auth(a, s);
    a = open_auth(&s);
    CHECK_EQ(role_of(a, once, 5000), ROLE_ENROLL);
    CHECK_EQ(role_of(a, dated, 999), ROLE_ENROLL);
    CHECK_EQ(role_of(a, dated, 1000), ROLE_NOBODY);
    CHECK_OK(auth_join_use(a, dated_id, 10, pool, &e), &e);
    CHECK_OK(auth_join_use(a, dated_id, 20, pool, &e), &e);
    CHECK_STR(pool, "night");
    CHECK_EQ(auth_join_use(a, dated_id, 1001, pool, &e), ST_DENIED);
    CHECK_OK(auth_join_use(a, once_id, 10, NULL, &e), &e);
    CHECK_EQ(auth_join_use(a, once_id, 10, NULL, &e), ST_DENIED);
    close_auth(a, s);
    a = open_auth(&s);
    CHECK_EQ(role_of(a, once, 10), ROLE_NOBODY);
    CHECK_OK(auth_join_revoke(a, dated_id, &e), &e);
    CHECK_EQ(role_of(a, dated, 10), ROLE_NOBODY);
    close_auth(a, s);
}

TEST(worker_credentials, "W6 H2: re-issuing replaces a worker's credential; removing it ends it")
{
    struct store *s;
    struct err e = {0};
    struct actor who = {0};
    char first[SECRET_BYTES], second[SECRET_BYTES];
    int64_t row = 0;
    struct store_worker w = {
        .worker_id = "0123456789abcdef0123456789abcdef", .name = "box", .kind = "enrolled"};
    struct auth *a = open_auth(&s);
    CHECK_OK(store_begin(s, &e), &e);
    CHECK_OK(store_end(s, store_worker_put(s, &w, &row, &e), &e), &e);
    CHECK_OK(auth_worker_mint(a, w.worker_id, "box", first, &e), &e);
    CHECK_EQ(role_of(a, first, 1), ROLE_WORKER);
    CHECK_OK(auth_worker_mint(a, w.worker_id, "box", second, &e), &e);
    CHECK_EQ(role_of(a, first, 1), ROLE_NOBODY);
    close_auth(a, s);
    a = open_auth(&s);
    CHECK_EQ(role_of(a, first, 1), ROLE_NOBODY);
    auth_who(a, second, 1, &who);
    CHECK_EQ(who.role, ROLE_WORKER);
    CHECK_STR(who.id, w.worker_id);
    CHECK_STR(who.name, "box");
    CHECK_OK(auth_worker_revoke(a, w.worker_id, &e), &e);
    CHECK_EQ(role_of(a, second, 1), ROLE_NOBODY);
    CHECK_EQ(auth_worker_mint(a, "none", "box", second, &e), ST_NOT_FOUND);
    close_auth(a, s);
}

/* ---- secrets ---- */

TEST(secrets, "H2: SHA-256 of known texts; tokens differ; comparing")
{
    unsigned char hash[SECRET_HASH_BYTES];
    char hex[65], a[SECRET_BYTES], b[SECRET_BYTES];
    struct err e = {0};
    secret_hash("abc", hash);
    for (int i = 0; i < SECRET_HASH_BYTES; i++)
        (void)snprintf(hex + 2 * i, 3, "%02x", hash[i]);
    CHECK_STR(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK_OK(secret_make("snk_", a, &e), &e);
    CHECK_OK(secret_make("snk_", b, &e), &e);
    CHECK_EQ(strlen(a), 47);
    CHECK_EQ(strspn(a, "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"), 47);
    CHECK(!secret_same(a, b) && secret_same(a, a) && !secret_same(a, "") && secret_same("", ""));
    secret_wipe(a, sizeof a);
    for (size_t i = 0; i < sizeof a; i++)
        CHECK_EQ(a[i], 0);
}

/* ---- settings ---- */

static void write_config(const char *text)
{
    struct err e = {0};
    char path[1100];
    (void)setenv("SNUG_HOME", test_dir(), 1);
    (void)path_join(test_dir(), "config.json", path, sizeof path);
    CHECK_OK(file_write(path, text, strlen(text), &e), &e);
}

TEST(
    settings_order,
    "a flag wins over the environment, that over config.json, that over the default")
{
    struct server_config c;
    struct err e = {0};
    json_t *flags = json_pack("{s:s}", "port", "1");
    write_config("{\"port\": 3, \"host\": \"0.0.0.0\", \"allow_commands\": true, \"other\": []}");
    CHECK_OK(server_config_read(&c, NULL, &e), &e);
    CHECK_EQ(c.port, 3);
    CHECK_STR(c.host, "0.0.0.0");
    CHECK(c.allow_commands);
    CHECK_EQ(c.run_queue_max_concurrent_cpu, 2);
    CHECK_EQ(c.ws_max_message_bytes, c.max_run_body_bytes);
    CHECK(str_ends(c.graphs_dir, "/graphs"));
    server_config_release(&c);
    (void)setenv("SNUG_PORT", "2", 1);
    (void)setenv("SNUG_ALLOW_COMMANDS", "0", 1);
    CHECK_OK(server_config_read(&c, NULL, &e), &e);
    CHECK_EQ(c.port, 2);
    CHECK(!c.allow_commands);
    server_config_release(&c);
    CHECK_OK(server_config_read(&c, flags, &e), &e);
    CHECK_EQ(c.port, 1);
    server_config_release(&c);
    json_decref(flags);
}

TEST(settings_faults, "a setting that cannot be read says where it stands")
{
    struct server_config c;
    struct err e = {0};
    write_config("{\"port\": \"many\"}");
    CHECK_EQ(server_config_read(&c, NULL, &e), ST_INVALID);
    CHECK(strstr(e.text, "\"port\" of config.json"));
    write_config("{\"port\": 70000}");
    CHECK_EQ(server_config_read(&c, NULL, &e), ST_INVALID);
    write_config("{\"allow_commands\": 3}");
    CHECK_EQ(server_config_read(&c, NULL, &e), ST_INVALID);
    write_config("{}");
    (void)setenv("SNUG_MAX_CONNECTIONS", "x", 1);
    CHECK_EQ(server_config_read(&c, NULL, &e), ST_INVALID);
    CHECK(strstr(e.text, "SNUG_MAX_CONNECTIONS"));
    (void)unsetenv("SNUG_MAX_CONNECTIONS");
    (void)setenv("SNUG_TLS_KEY", "k.pem", 1);
    CHECK_EQ(server_config_read(&c, NULL, &e), ST_INVALID);
}
