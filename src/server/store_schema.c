/* store_schema.c - the tables of snug.db, as migrations: appended to, never changed once released.
 *
 * FORMAT  PRAGMA user_version is the number of migrations that were applied, application_id is
 * "SNUG". Enums are stored as their numbers, texts that are not there as '', times as microseconds.
 *
 *   graphs         snapshots, deflated, one per content
 *   runs           a row a run: all that lists and the queue need. state 100: deleted, its long
 *                  logs are being removed piece by piece (store_idle)
 *   run_documents  long texts of a run: facts, detail, result
 *   events, metrics, artifacts     by run; metrics carry the cursor of the event that brought them
 *   peaks          last measured peak by graph key and number of cards; outlives the run
 *   workers, cards, credentials, refusals, settings
 *   sweeps, sweep_variants         unique (sweep, variant); keep the result of a run that is gone
 *   studies, study_cells, study_events     unique (study, variant, repetition)
 */
#include "server/store_int.h"

static const char *const v1[] = {
    "CREATE TABLE graphs("
    " id INTEGER PRIMARY KEY, hash BLOB NOT NULL UNIQUE, text_bytes INTEGER NOT NULL,"
    " packed BLOB NOT NULL)",
    "CREATE TABLE runs("
    " id INTEGER PRIMARY KEY, run_id TEXT NOT NULL UNIQUE, state INTEGER NOT NULL,"
    " name TEXT NOT NULL, owner TEXT NOT NULL, kind TEXT NOT NULL, lane TEXT NOT NULL,"
    " tab TEXT NOT NULL, options TEXT NOT NULL, graph_id INTEGER NOT NULL, patch TEXT NOT NULL,"
    " graph_key TEXT NOT NULL, graph_dir TEXT NOT NULL, command TEXT NOT NULL,"
    " target TEXT NOT NULL, wanted TEXT NOT NULL, pool TEXT NOT NULL, wait INTEGER NOT NULL,"
    " resume TEXT NOT NULL, timeout_s REAL NOT NULL, git_commit TEXT NOT NULL,"
    " plugin_pins TEXT NOT NULL, git_dirty INTEGER NOT NULL, idempotency_key TEXT NOT NULL,"
    " sweep INTEGER NOT NULL, study INTEGER NOT NULL, variant INTEGER NOT NULL,"
    " repetition INTEGER NOT NULL, created_us INTEGER NOT NULL, budget_bytes INTEGER NOT NULL,"
    " budget_source INTEGER NOT NULL, budget_run TEXT NOT NULL, budget_raised INTEGER NOT NULL,"
    " epoch INTEGER NOT NULL, worker TEXT NOT NULL, devices TEXT NOT NULL,"
    " queue_key TEXT NOT NULL, sequence INTEGER NOT NULL, last_cursor INTEGER NOT NULL,"
    " started_us INTEGER NOT NULL, cancel_asked INTEGER NOT NULL, finished_us INTEGER NOT NULL,"
    " cause TEXT NOT NULL, error TEXT NOT NULL, exit_code INTEGER NOT NULL,"
    " signal_number INTEGER NOT NULL, peaks TEXT NOT NULL, final_metrics TEXT NOT NULL)",
    "CREATE INDEX runs_state ON runs(state, id)",
    "CREATE INDEX runs_active ON runs(id) WHERE state < 4",
    "CREATE INDEX runs_ended ON runs(finished_us, id) WHERE state BETWEEN 4 AND 7",
    "CREATE INDEX runs_graph ON runs(graph_id) WHERE graph_id > 0",
    "CREATE UNIQUE INDEX runs_once ON runs(owner, idempotency_key) WHERE idempotency_key <> ''",
    "CREATE UNIQUE INDEX runs_variant ON runs(sweep, variant) WHERE sweep > 0",
    "CREATE INDEX runs_study ON runs(study, variant, repetition) WHERE study > 0",
    "CREATE TABLE run_documents("
    " run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, kind TEXT NOT NULL,"
    " text TEXT NOT NULL, PRIMARY KEY(run, kind)) WITHOUT ROWID",
    "CREATE TABLE events("
    " run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, cursor INTEGER NOT NULL,"
    " type TEXT NOT NULL, payload TEXT NOT NULL, ts INTEGER NOT NULL,"
    " PRIMARY KEY(run, cursor)) WITHOUT ROWID",
    "CREATE TABLE metrics("
    " run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE, name TEXT NOT NULL,"
    " step INTEGER NOT NULL, cursor INTEGER NOT NULL, node_id TEXT NOT NULL, value REAL,"
    " ts INTEGER NOT NULL, PRIMARY KEY(run, name, step, cursor, node_id)) WITHOUT ROWID",
    "CREATE TABLE artifacts("
    " id INTEGER PRIMARY KEY, run INTEGER NOT NULL REFERENCES runs(id) ON DELETE CASCADE,"
    " kind TEXT NOT NULL, path TEXT NOT NULL, meta TEXT NOT NULL, node_id TEXT NOT NULL,"
    " ts INTEGER NOT NULL)",
    "CREATE INDEX artifacts_run ON artifacts(run, id)",
    "CREATE TABLE peaks("
    " graph_key TEXT NOT NULL, cards INTEGER NOT NULL, bytes INTEGER NOT NULL,"
    " run_id TEXT NOT NULL, ts INTEGER NOT NULL, PRIMARY KEY(graph_key, cards)) WITHOUT ROWID",
    "CREATE TABLE workers("
    " id INTEGER PRIMARY KEY, worker_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL UNIQUE,"
    " kind TEXT NOT NULL, pool TEXT NOT NULL, ssh_host TEXT NOT NULL, hello TEXT NOT NULL,"
    " last_refusal TEXT NOT NULL, draining INTEGER NOT NULL, disabled INTEGER NOT NULL,"
    " created_us INTEGER NOT NULL, seen_us INTEGER NOT NULL)",
    "CREATE TABLE cards("
    " worker INTEGER NOT NULL REFERENCES workers(id) ON DELETE CASCADE, card TEXT NOT NULL,"
    " mode INTEGER NOT NULL, PRIMARY KEY(worker, card)) WITHOUT ROWID",
    "CREATE TABLE credentials("
    " id INTEGER PRIMARY KEY, credential_id TEXT NOT NULL UNIQUE, kind INTEGER NOT NULL,"
    " name TEXT NOT NULL, prefix TEXT NOT NULL, hash BLOB NOT NULL UNIQUE,"
    " exec INTEGER NOT NULL, worker INTEGER REFERENCES workers(id) ON DELETE CASCADE,"
    " created_us INTEGER NOT NULL, used_us INTEGER NOT NULL, expires_us INTEGER NOT NULL,"
    " revoked_us INTEGER NOT NULL, uses_left INTEGER NOT NULL)",
    "CREATE INDEX credentials_worker ON credentials(worker) WHERE worker IS NOT NULL",
    "CREATE TABLE refusals("
    " name TEXT PRIMARY KEY, version TEXT NOT NULL, hostname TEXT NOT NULL,"
    " reason TEXT NOT NULL, ts INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE settings(key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE sweeps("
    " id INTEGER PRIMARY KEY, sweep_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL,"
    " owner TEXT NOT NULL, state INTEGER NOT NULL, method TEXT NOT NULL, seed INTEGER,"
    " seed_variants INTEGER NOT NULL, params TEXT NOT NULL, objective TEXT NOT NULL,"
    " options TEXT NOT NULL, total INTEGER NOT NULL, created_us INTEGER NOT NULL,"
    " finished_us INTEGER NOT NULL)",
    "CREATE TABLE sweep_variants("
    " sweep INTEGER NOT NULL REFERENCES sweeps(id) ON DELETE CASCADE, variant INTEGER NOT NULL,"
    " combination INTEGER NOT NULL, run_id TEXT NOT NULL, kept TEXT NOT NULL,"
    " PRIMARY KEY(sweep, variant)) WITHOUT ROWID",
    "CREATE TABLE studies("
    " id INTEGER PRIMARY KEY, study_id TEXT NOT NULL UNIQUE, name TEXT NOT NULL,"
    " owner TEXT NOT NULL, state INTEGER NOT NULL, reason TEXT NOT NULL, params TEXT NOT NULL,"
    " objective TEXT NOT NULL, options TEXT NOT NULL, settings TEXT NOT NULL,"
    " graph_id INTEGER NOT NULL REFERENCES graphs(id), variants INTEGER NOT NULL,"
    " repetitions INTEGER NOT NULL, seed INTEGER NOT NULL, runs_max INTEGER NOT NULL,"
    " runs_made INTEGER NOT NULL, last_cursor INTEGER NOT NULL, created_us INTEGER NOT NULL,"
    " finished_us INTEGER NOT NULL)",
    "CREATE INDEX studies_graph ON studies(graph_id)",
    "CREATE INDEX studies_open ON studies(state) WHERE state < 3",
    "CREATE TABLE study_cells("
    " study INTEGER NOT NULL REFERENCES studies(id) ON DELETE CASCADE, variant INTEGER NOT NULL,"
    " repetition INTEGER NOT NULL, combination INTEGER NOT NULL, state INTEGER NOT NULL,"
    " attempt INTEGER NOT NULL, run_id TEXT NOT NULL, kept TEXT NOT NULL,"
    " PRIMARY KEY(study, variant, repetition)) WITHOUT ROWID",
    "CREATE INDEX study_cells_next ON study_cells(study, state, repetition, variant)",
    "CREATE TABLE study_events("
    " study INTEGER NOT NULL REFERENCES studies(id) ON DELETE CASCADE, cursor INTEGER NOT NULL,"
    " type TEXT NOT NULL, payload TEXT NOT NULL, ts INTEGER NOT NULL,"
    " PRIMARY KEY(study, cursor)) WITHOUT ROWID",
    NULL};

const char *const *const store_migrations[] = {v1};
const int store_migration_count = sizeof store_migrations / sizeof *store_migrations;
