/* The remote tier when the server is not as one would wish: every move ends within its limit, the
 * tier says what is wrong once, and it comes back by itself. */
#include "tests/cache/remote_rig.h"

#include <signal.h>
#include <time.h>

static double since(uint64_t start_ns) {
    return (double)(clock_ns() - start_ns) * 1e-9;
}

static void nap_ms(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static void url_of(char out[128], const char *login, int port) {
    snprintf(out, 128, "redis://%s127.0.0.1:%d", login, port);
}

/* --- a server that goes and comes ------------------------------------------------------------- */

static void lost_server_ends_moves_at_once_and_comes_back(void **state) {
    struct rig_server server;
    struct rig a;
    rig_log_begin();
    rig_server_start(&server, 0, NULL);
    rig_open(&a, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_OK);
    rig_server_stop(&server, SIGKILL);
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 4, true), TIER_FAILED);
    assert_false(rig_usage(&a).up);
    assert_true(rig_all_are(&a, 1, 4, true, TIER_ABSENT));
    const uint64_t start = clock_ns();
    for (unsigned i = 0; i < 100; i++) {
        assert_int_equal(rig_run(&a, TIER_STORE, i, 4, true), TIER_DECLINED);
        assert_int_equal(rig_run(&a, TIER_LOAD, i, 4, true), TIER_DECLINED);
        assert_int_equal(rig_run(&a, TIER_PROBE, i, 4, true), TIER_DECLINED);
    }
    assert_true(since(start) < 5);
    assert_true(rig_all_are(&a, 1, 4, true, TIER_ABSENT));
    nap_ms(500); /* several attempts */
    assert_int_equal(rig_log_count(": off: "), 1);
    rig_server_start(&server, server.port, NULL);
    rig_wait_up(&a, true);
    assert_int_equal(rig_log_count("answers again"), 1);
    assert_int_equal(rig_run(&a, TIER_PROBE, 1, 4, true), TIER_OK);
    assert_true(rig_all_are(&a, 1, 4, true, TIER_ABSENT)); /* that server lost all it had */
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_OK);
    rig_clear(&a);
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 4, true), TIER_OK);
    assert_true(rig_loaded(&a, 1, 4, true));
    rig_close(&a);
    rig_server_stop(&server, SIGTERM);
    assert_int_equal(rig_log_count("remote store"), 3);
}

static void server_that_was_never_there_is_used_when_it_comes(void **state) {
    struct rig_server server;
    struct rig a;
    rig_server_start(&server, 0, NULL);
    const int port = server.port;
    rig_server_stop(&server, SIGKILL);
    rig_log_begin();
    rig_open(&a, 'a', port);
    assert_false(rig_usage(&a).up);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 2, true), TIER_DECLINED);
    nap_ms(300);
    assert_int_equal(rig_log_count("remote store"), 1);
    assert_int_equal(rig_log_count("off: Connection refused"), 1);
    rig_server_start(&server, port, NULL);
    rig_wait_up(&a, true);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 2, true), TIER_OK);
    assert_int_equal(rig_log_count("remote store"), 2);
    rig_close(&a);
    rig_server_stop(&server, SIGKILL);
}

static void *kill_later(void *arg) {
    struct rig_server *s = arg;
    nap_ms(1 + (long)(rng_mix((uint64_t)s->port + (uint64_t)s->pid) % 30));
    kill(s->pid, SIGKILL);
    return NULL;
}

/* Whatever a move was doing when the server died: it ends, and an OK load has the right bytes. */
static void server_killed_in_the_middle_of_moves_is_survived(void **state) {
    enum { MOVES = 8, BLOCKS = 8 };
    static struct rig_move move[MOVES];
    struct rig_server server;
    struct rig a;
    unsigned failed = 0, off = 0;
    rig_log_begin();
    rig_server_start(&server, 0, NULL);
    rig_open(&a, 'a', server.port);
    for (unsigned round = 0; round < 12; round++) {
        pthread_t killer;
        rig_wait_up(&a, true);
        assert_int_equal(rig_run(&a, TIER_STORE, round, BLOCKS, true), TIER_OK);
        assert_int_equal(pthread_create(&killer, NULL, kill_later, &server), 0);
        while (rig_usage(&a).up) {
            rig_clear(&a);
            for (unsigned i = 0; i < MOVES; i++) {
                const bool load = i % 2 == 0;
                rig_move_make(&a, &move[i], load ? TIER_LOAD : TIER_STORE,
                              load ? round : 1000 + round * MOVES + i, BLOCKS, i == 0,
                              (int32_t)(i * BLOCKS), 0);
                a.tier->submit(a.tier, &move[i].move);
            }
            rig_wait(&a, MOVES);
            for (unsigned i = 0; i < MOVES; i++) {
                const enum tier_result result = move[i].move.result;
                failed += result == TIER_FAILED;
                assert_true(result == TIER_OK || result == TIER_FAILED || result == TIER_DECLINED);
                for (uint32_t k = 0; k < BLOCKS && i % 2 == 0 && result == TIER_OK; k++)
                    assert_true(rig_page_is(&a, (int32_t)(i * BLOCKS + k), round, k));
                if (i == 0 && result == TIER_OK)
                    assert_true(rig_slot_is(&a, 0, round, BLOCKS));
            }
        }
        off++;
        pthread_join(killer, NULL);
        rig_server_stop(&server, SIGKILL);
        assert_int_equal(rig_log_count(": off: "), off);
        rig_server_start(&server, server.port, NULL);
    }
    assert_true(failed > 0);
    rig_wait_up(&a, true);
    assert_int_equal(rig_log_count("answers again"), off);
    rig_close(&a);
    rig_server_stop(&server, SIGKILL);
}

/* A server that is started anew while nothing is under way: its records are gone, nothing is wrong.
 */
static void restarted_server_has_lost_what_was_known(void **state) {
    struct rig_server server;
    struct rig a;
    rig_server_start(&server, 0, NULL);
    rig_open(&a, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_OK);
    rig_server_stop(&server, SIGKILL);
    rig_server_start(&server, server.port, NULL);
    const enum tier_result result = rig_run(&a, TIER_LOAD, 1, 4, true);
    assert_true(result == TIER_GONE || result == TIER_FAILED);
    assert_true(rig_all_are(&a, 1, 4, true, TIER_ABSENT));
    rig_close(&a);
    rig_server_stop(&server, SIGKILL);
}

/* Probes of prefixes 1..8 at the same time, so that every connection is used. */
static void probe_eight(struct rig *a) {
    static struct rig_move move[8];
    for (unsigned i = 0; i < 8; i++) {
        rig_move_make(a, &move[i], TIER_PROBE, 1 + i, 4, true, 0, 0);
        a->tier->submit(a->tier, &move[i].move);
    }
    rig_wait(a, 8);
    for (unsigned i = 0; i < 8; i++)
        assert_int_equal(move[i].move.result, TIER_OK);
}

/* Connections of before are not used any more, even if the server still has them open. */
static void frozen_server_ends_moves_within_the_limit(void **state) {
    struct rig_server server;
    struct rig a;
    rig_log_begin();
    rig_server_start(&server, 0, NULL);
    rig_open_short(&a, 'a', server.port);
    for (uint64_t i = 1; i <= 8; i++)
        assert_int_equal(rig_run(&a, TIER_STORE, i, 4, true), TIER_OK);
    for (unsigned i = 0; i < 20; i++)
        probe_eight(&a);
    kill(server.pid, SIGSTOP);
    const uint64_t start = clock_ns();
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 4, true), TIER_FAILED);
    assert_true(since(start) > 1 && since(start) < 10);
    assert_int_equal(rig_log_count("no answer within the time limit"), 1);
    kill(server.pid, SIGCONT);
    rig_wait_up(&a, true);
    probe_eight(&a);
    for (uint64_t i = 1; i <= 8; i++)
        assert_true(rig_all_are(&a, i, 4, true, TIER_PRESENT));
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 4, true), TIER_OK);
    assert_true(rig_loaded(&a, 1, 4, true));
    rig_close(&a);
    rig_server_stop(&server, SIGKILL);
}

/* Whoever notices first that the server is gone speaks for all: nobody waits for his own limit. */
static void a_lost_server_releases_all_that_wait_for_it(void **state) {
    enum { MOVES = 9 };
    static struct rig_move move[MOVES];
    struct remote_limits limits = rig_long; /* 20 s for a move */
    struct rig_server server;
    struct rig a;
    char url[128];
    limits.connect_seconds = 0.5;
    rig_server_start(&server, 0, NULL);
    url_of(url, "", server.port);
    for (int connections = 1; connections <= 4; connections += 3) {
        rig_log_begin();
        rig_open_url(&a, 'a', url, &limits);
        assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_OK);
        for (unsigned i = 0; connections > 1 && i < 20; i++)
            probe_eight(&a);
        kill(server.pid, SIGSTOP);
        const uint64_t start = clock_ns();
        for (unsigned i = 0; i < MOVES; i++) {
            rig_move_make(&a, &move[i], i % 3 ? TIER_LOAD : TIER_PROBE, 1, 4, true, (int32_t)i * 4,
                          0);
            a.tier->submit(a.tier, &move[i].move);
        }
        rig_wait(&a, MOVES);
        if (since(start) > 8)
            fail_msg("%d connections: %g s", connections, since(start));
        for (unsigned i = 0; i < MOVES; i++)
            assert_int_equal(move[i].move.result, TIER_FAILED);
        assert_int_equal(rig_log_count(": off: "), 1);
        kill(server.pid, SIGCONT);
        rig_wait_up(&a, true);
        assert_int_equal(rig_run(&a, TIER_LOAD, 1, 4, true), TIER_OK);
        rig_close(&a);
        rig_log_end(state);
    }
    rig_server_stop(&server, SIGKILL);
}

/* --- a server that reads but takes nothing ---------------------------------------------------- */

static void full_server_declines_stores_and_still_loads(void **state) {
    struct rig_server server;
    struct rig a;
    rig_log_begin();
    rig_server_start(&server, 0, NULL);
    rig_open(&a, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_OK);
    rig_do(&server, "CONFIG SET maxmemory-policy noeviction");
    rig_do(&server, "CONFIG SET maxmemory 1mb");
    for (uint64_t i = 0; i < 50; i++) {
        assert_int_equal(rig_run(&a, TIER_STORE, 100 + i, 40, true), TIER_DECLINED);
        assert_true(rig_all_are(&a, 100 + i, 40, true, TIER_ABSENT));
        nap_ms(10);
    }
    assert_true(rig_usage(&a).up && !rig_usage(&a).takes);
    assert_int_equal(rig_log_count("takes no records: OOM"), 1);
    rig_clear(&a);
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 4, true), TIER_OK);
    assert_true(rig_loaded(&a, 1, 4, true));
    rig_do(&server, "CONFIG SET maxmemory 0");
    nap_ms(150); /* the pause after a refusal */
    assert_int_equal(rig_run(&a, TIER_STORE, 2, 4, true), TIER_OK);
    assert_int_equal(rig_run(&a, TIER_STORE, 3, 4, true), TIER_OK);
    assert_true(rig_usage(&a).takes);
    assert_int_equal(rig_log_count("takes records again"), 0); /* less than was refused */
    assert_int_equal(rig_run(&a, TIER_STORE, 100, 40, true), TIER_OK);
    assert_int_equal(rig_log_count("takes records again"), 1);
    assert_int_equal(rig_log_count("remote store"), 3);
    rig_close(&a);
    rig_server_stop(&server, SIGKILL);
}

static void replica_that_refuses_writes_is_read(void **state) {
    struct rig_server server;
    struct rig a;
    rig_log_begin();
    rig_server_start(&server, 0, NULL);
    rig_open(&a, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_OK);
    rig_do(&server, "REPLICAOF 127.0.0.1 1");
    for (uint64_t i = 2; i < 20; i++)
        assert_int_equal(rig_run(&a, TIER_STORE, i, 4, true), TIER_DECLINED);
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 4, true), TIER_OK);
    assert_int_equal(rig_log_count("takes no records: READONLY"), 1);
    rig_do(&server, "REPLICAOF NO ONE");
    nap_ms(150);
    assert_int_equal(rig_run(&a, TIER_STORE, 2, 4, true), TIER_OK);
    assert_int_equal(rig_log_count("remote store"), 3);
    rig_close(&a);
    rig_server_stop(&server, SIGKILL);
}

/* A server whose replica lost its master refuses reads: it is off as a whole, and says why. */
static void server_that_refuses_reads_is_off(void **state) {
    const char *options[] = {"--replica-serve-stale-data", "no", NULL};
    struct rig_server server;
    struct rig a;
    rig_log_begin();
    rig_server_start(&server, 0, options);
    rig_open(&a, 'a', server.port);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_OK);
    rig_do(&server, "REPLICAOF 127.0.0.1 1");
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 4, true), TIER_FAILED);
    nap_ms(400);
    assert_int_equal(rig_log_count("MASTERDOWN"), 1);
    assert_int_equal(rig_log_count("remote store"), 2);
    rig_do(&server, "REPLICAOF NO ONE");
    rig_wait_up(&a, true);
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 4, true), TIER_OK);
    rig_close(&a);
    rig_server_stop(&server, SIGKILL);
}

/* --- a server that evicts --------------------------------------------------------------------- */

static void evicting_server_loses_records_and_never_mixes_them(void **state) {
    const char *options[] = {"--maxmemory", "4mb", "--maxmemory-policy", "allkeys-lru", NULL};
    struct rig_server server;
    struct rig a;
    unsigned ok = 0, gone = 0;
    rig_server_start(&server, 0, options);
    rig_open(&a, 'a', server.port);
    for (uint64_t seed = 1; seed <= 200; seed++)
        assert_int_equal(rig_run(&a, TIER_STORE, seed, 4, true), TIER_OK);
    for (uint64_t seed = 200; seed > 0; seed--) {
        rig_clear(&a);
        const enum tier_result result = rig_run(&a, TIER_LOAD, seed, 4, true);
        assert_true(result == TIER_OK || result == TIER_GONE);
        ok += result == TIER_OK;
        gone += result == TIER_GONE;
        if (result == TIER_OK)
            assert_true(rig_loaded(&a, seed, 4, true));
        else
            assert_false(rig_all_are(&a, seed, 4, true, TIER_PRESENT));
    }
    assert_true(ok > 0 && gone > 0);
    assert_true(rig_usage(&a).pages_evicted > 0);
    assert_int_equal(rig_usage(&a).damaged, 0);
    rig_close(&a);
    rig_server_stop(&server, SIGKILL);
}

/* --- passwords -------------------------------------------------------------------------------- */

static void password_is_given_and_never_logged(void **state) {
    const char *options[] = {"--requirepass", "hunter2/@:", NULL};
    const struct {
        const char *login, *want;
    } try[] = {{":hunter2%2f%40:@", "connected"},
               {":hunter2/@:@", "connected"},
               {"default:hunter2%2f%40%3A@", "connected"},
               {":geheim@", "off: it refuses the password: WRONGPASS"},
               {"somebody:geheim@", "off: it refuses user and password: WRONGPASS"},
               {"", "off: it refuses access without a password: NOAUTH"}};
    struct rig_server server;
    rig_log_begin();
    rig_server_start(&server, 0, options);
    redisReply *r = redisCommand(server.raw, "AUTH %s", "hunter2/@:");
    assert_int_equal(r->type, REDIS_REPLY_STATUS);
    freeReplyObject(r);
    for (size_t i = 0; i < sizeof try / sizeof *try; i++) {
        struct rig a;
        char url[128];
        url_of(url, try[i].login, server.port);
        const unsigned before = rig_log_count("remote store"), same = rig_log_count(try[i].want);
        rig_open_url(&a, 'a', url, &rig_long);
        assert_int_equal(rig_usage(&a).up, strcmp(try[i].want, "connected") == 0);
        assert_int_equal(rig_run(&a, TIER_STORE, i, 2, true), i < 3 ? TIER_OK : TIER_DECLINED);
        nap_ms(150);
        rig_close(&a);
        if (rig_log_count("remote store") != before + 1 || rig_log_count(try[i].want) != same + 1)
            fail_msg("%s: not the one line \"%s\"", try[i].login, try[i].want);
    }
    struct rig none;
    char db[128];
    url_of(db, "", server.port);
    strcat(db, "/3"); /* the database is asked for first and is not what is wrong */
    rig_open_url(&none, 'a', db, &rig_long);
    rig_close(&none);
    assert_int_equal(rig_log_count("/3: off: it refuses access without a password: NOAUTH"), 1);
    rig_server_stop(&server, SIGKILL);
    /* A server without password refuses one, and some quote what they refuse. */
    struct rig_fake echo;
    struct rig a;
    char url[128];
    rig_fake_start(&echo, RIG_ECHO);
    url_of(url, ":geheim@", echo.port);
    rig_open_url(&a, 'a', url, &rig_long);
    rig_close(&a);
    rig_fake_stop(&echo);
    assert_int_equal(rig_log_count("off: it refuses the password: ERR;"), 1);
    assert_int_equal(rig_log_count("geheim"), 0);
    assert_int_equal(rig_log_count("hunter2"), 0);
}

static void database_of_the_address_is_used(void **state) {
    struct rig_server server;
    struct rig a;
    char url[160];
    rig_log_begin();
    rig_server_start(&server, 0, NULL);
    url_of(url, "", server.port);
    strcat(url, "/3");
    rig_open_url(&a, 'a', url, &rig_long);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_OK);
    rig_close(&a);
    assert_int_equal(rig_count(&server, "*"), 0);
    rig_do(&server, "SELECT 3");
    assert_int_equal(rig_count(&server, "*"), 4 + RIG_LAYERS + 1);
    strcat(url, "3");
    rig_open_url(&a, 'a', url, &rig_long);
    assert_false(rig_usage(&a).up);
    rig_close(&a);
    assert_int_equal(rig_log_count("/33: off: it refuses the database: ERR DB index"), 1);
    rig_server_stop(&server, SIGKILL);
}

/* --- servers that misbehave ------------------------------------------------------------------- */

static void silent_server_is_off_within_the_limit(void **state) {
    struct rig_fake fake;
    struct rig a;
    rig_log_begin();
    rig_fake_start(&fake, RIG_SILENT);
    uint64_t start = clock_ns();
    rig_open_short(&a, 'a', fake.port);
    assert_true(since(start) < 8);
    assert_int_equal(rig_run(&a, TIER_STORE, 1, 4, true), TIER_DECLINED);
    assert_int_equal(rig_run(&a, TIER_LOAD, 1, 4, true), TIER_DECLINED);
    start = clock_ns();
    rig_close(&a);
    assert_true(since(start) < 8);
    rig_fake_stop(&fake);
    assert_int_equal(rig_log_count("off: no answer within the time limit"), 1);
}

static void bad_answers_end_moves_failed_within_the_limit(void **state) {
    const struct {
        enum rig_fault fault;
        const char *why;
    } bad[] = {{RIG_NO_VALUES, "no answer within the time limit"},
               {RIG_TRICKLE, "no answer within the time limit"},
               {RIG_FLOOD, "it sends more than was asked for"},
               {RIG_GARBAGE, "Protocol error"}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        for (int task = 0; task <= TIER_PROBE; task++) {
            struct rig_fake fake;
            struct rig a;
            rig_log_begin();
            rig_fake_start(&fake, bad[i].fault);
            rig_open_short(&a, 'a', fake.port);
            rig_wait_up(&a, true);
            const uint64_t start = clock_ns();
            assert_int_equal(rig_run(&a, (enum tier_task)task, 1, 4, true), TIER_FAILED);
            assert_true(since(start) < 10);
            rig_close(&a);
            rig_fake_stop(&fake);
            if (rig_log_count(bad[i].why) < 1)
                fail_msg("fault %d, task %d: no line says \"%s\"", bad[i].fault, task, bad[i].why);
            rig_log_end(NULL);
        }
}

static void slow_server_is_waited_for(void **state) {
    struct rig_fake fake;
    struct rig a;
    struct rig_move m, probe;
    rig_fake_start(&fake, RIG_SLOW);
    rig_open(&a, 'a', fake.port);
    rig_move_make(&a, &m, TIER_STORE, 1, 2, false, 0, 0);
    a.tier->submit(a.tier, &m.move);
    assert_true(rig_all_are(&a, 1, 2, false, TIER_COMING));
    nap_ms(50);
    assert_true(rig_all_are(&a, 1, 2, false, TIER_COMING));
    /* The server's word on what is still on its way does not count. On a slow machine both moves
     * end at once. */
    rig_move_make(&a, &probe, TIER_PROBE, 1, 2, false, 0, 0);
    a.tier->submit(a.tier, &probe.move);
    assert_false(rig_all_are(&a, 1, 2, false, TIER_ABSENT));
    rig_wait(&a, 2);
    assert_int_equal(probe.move.result, TIER_OK);
    assert_int_equal(m.move.result, TIER_OK);
    assert_true(rig_all_are(&a, 1, 2, false, TIER_PRESENT));
    rig_close(&a);
    rig_fake_stop(&fake);
}

/* A manifest promises layers, and a state its pages: neither is sent before these are confirmed. */
static void nothing_is_published_before_what_it_needs(void **state) {
    const enum rig_fault fault[] = {RIG_NO_PAGES, RIG_NO_LAYERS};
    for (size_t i = 0; i < 2; i++) {
        struct rig_fake fake;
        struct rig a;
        rig_fake_start(&fake, fault[i]);
        rig_open(&a, 'a', fake.port);
        assert_int_equal(rig_run(&a, TIER_STORE, 1, 3, true), TIER_DECLINED);
        assert_true(rig_all_are(&a, 1, 3, true, TIER_ABSENT));
        rig_close(&a);
        rig_fake_stop(&fake);
        assert_true(fake.pages > 0);
        assert_int_equal(fake.layers > 0, fault[i] == RIG_NO_LAYERS);
        assert_int_equal(fake.manifests, 0);
    }
}

static void too_many_stores_are_declined_and_probes_pass_them(void **state) {
    enum { MOVES = 60 };
    static struct rig_move move[MOVES];
    struct rig_fake fake;
    struct rig a;
    unsigned declined = 0;
    rig_fake_start(&fake, RIG_SLOW);
    rig_open(&a, 'a', fake.port);
    for (unsigned i = 0; i < MOVES; i++) {
        rig_move_make(&a, &move[i], TIER_STORE, i, 1, false, (int32_t)i, 0);
        a.tier->submit(a.tier, &move[i].move);
    }
    struct rig_move probe;
    rig_move_make(&a, &probe, TIER_PROBE, 999, 1, false, 0, 0);
    a.tier->submit(a.tier, &probe.move);
    rig_wait(&a, MOVES + 1);
    assert_int_equal(probe.move.result, TIER_OK);
    assert_true(probe.move.seconds < 2);
    for (unsigned i = 0; i < MOVES; i++)
        declined += move[i].move.result == TIER_DECLINED;
    assert_true(declined >= MOVES - 32 - 3 && declined < MOVES);
    rig_close(&a);
    rig_fake_stop(&fake);
}

static void close_ends_within_the_limit_whatever_is_under_way(void **state) {
    enum { MOVES = 20 };
    static struct rig_move move[MOVES];
    const enum rig_fault fault[] = {RIG_NO_VALUES, RIG_TRICKLE, RIG_SLOW};
    for (size_t i = 0; i < 3; i++) {
        struct remote_limits limits = rig_short;
        struct rig_fake fake;
        struct rig a;
        char url[128];
        limits.bytes_per_second = 1; /* as if the moves were as long as they can be */
        rig_fake_start(&fake, fault[i]);
        url_of(url, "", fake.port);
        rig_open_url(&a, 'a', url, &limits);
        for (unsigned k = 0; k < MOVES; k++) {
            rig_move_make(&a, &move[k], (enum tier_task)(k % 3), k, 3, true, (int32_t)k * 3, 0);
            a.tier->submit(a.tier, &move[k].move);
        }
        nap_ms(50);
        const uint64_t start = clock_ns();
        rig_close(&a);
        assert_true(since(start) < 8);
        rig_fake_stop(&fake);
    }
}

#define CASE(f) cmocka_unit_test_teardown(f, rig_log_end)
int main(void) {
    rig_log_end(NULL);
    const struct CMUnitTest tests[] = {
        CASE(lost_server_ends_moves_at_once_and_comes_back),
        CASE(server_that_was_never_there_is_used_when_it_comes),
        CASE(server_killed_in_the_middle_of_moves_is_survived),
        CASE(restarted_server_has_lost_what_was_known),
        CASE(frozen_server_ends_moves_within_the_limit),
        CASE(a_lost_server_releases_all_that_wait_for_it),
        CASE(full_server_declines_stores_and_still_loads),
        CASE(replica_that_refuses_writes_is_read),
        CASE(server_that_refuses_reads_is_off),
        CASE(evicting_server_loses_records_and_never_mixes_them),
        CASE(password_is_given_and_never_logged),
        CASE(database_of_the_address_is_used),
        CASE(silent_server_is_off_within_the_limit),
        CASE(bad_answers_end_moves_failed_within_the_limit),
        CASE(slow_server_is_waited_for),
        CASE(nothing_is_published_before_what_it_needs),
        CASE(too_many_stores_are_declined_and_probes_pass_them),
        CASE(close_ends_within_the_limit_whatever_is_under_way),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
