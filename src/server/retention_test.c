/* retention_test.c - what old runs leave behind is removed, and nothing else. */
#include "base/env.h"
#include "server/retention.h"

#include "test.h"

#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static char root[512], path[700];

static const char *at(const char *name)
{
    (void)snprintf(path, sizeof path, "%s/%s", root, name);
    return path;
}

static void put(const char *name, int64_t written_s)
{
    struct err e;
    CHECK_OK(file_write(at(name), "x", 1, &e), &e);
    struct timespec t[2] = {{.tv_sec = written_s}, {.tv_sec = written_s}};
    CHECK_EQ(utimensat(AT_FDCWD, at(name), t, 0), 0);
}

TEST(
    leftovers_of_old_runs,
    "R11 H3: a pruned run's folder goes, and its own automatic checkpoints; others' files stay")
{
    static const char id[] = "0123456789abcdef0123456789abcdef";
    static const char other[] = "fedcba9876543210fedcba9876543210";
    struct err e;
    struct server_config c;
    (void)snprintf(root, sizeof root, "%s/home", test_dir());
    server_config_defaults(&c, root);
    char folder[64];
    for (int i = 0; i < 2; i++) {
        (void)snprintf(folder, sizeof folder, "runs/%s/tb/node", i ? other : id);
        CHECK_OK(dir_make(at(folder), &e), &e);
    }
    CHECK_OK(dir_make(at("models/auto"), &e), &e);
    put("models/auto/a.pt", 1000);
    put("models/auto/later.pt", 2000);
    put("models/mine.pt", 1000);
    put("outside.pt", 1000);
    struct retention *r = retention_new(&c);
    const char *const paths[] = {"auto/a.pt", "auto/later.pt", "../outside.pt", "none.pt"};
    struct core_pruned run = {
        .run_id = id, .ended_us = INT64_C(1001000000), .checkpoints = paths, .n_checkpoints = 4};
    retention_add(r, &run);
    run = (struct core_pruned){.run_id = "../models", .ended_us = 1}; /* no id of ours */
    retention_add(r, &run);
    run = (struct core_pruned){
        .run_id = "00000000000000000000000000000000",
        .interrupted = true,
        .ended_us = INT64_C(1001000000),
        .checkpoints = (const char *const[]){"mine.pt"},
        .n_checkpoints = 1};
    retention_add(r, &run);
    retention_work(r);
    (void)snprintf(folder, sizeof folder, "runs/%s", id);
    CHECK(!dir_exists(at(folder)));
    (void)snprintf(folder, sizeof folder, "runs/%s", other);
    CHECK(dir_exists(at(folder)));
    CHECK(!file_exists(at("models/auto/a.pt")));
    CHECK(file_exists(at("models/auto/later.pt")));
    CHECK(file_exists(at("models/mine.pt")));
    CHECK(file_exists(at("outside.pt")));
    retention_free(r);
    server_config_release(&c);
}
