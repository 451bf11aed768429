/* rig.c: starts and reads the mock server. Called by the tests of the client. */
#include "tests/bench/rig.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static int64_t clock_of(clockid_t id) {
    struct timespec t;
    clock_gettime(id, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* The last of the processors is the mock's, the others are the client's: on one of them the mock
 * would see a burst of requests only when the client has sent them all. */
static void choose_processors(bool mock) {
    static cpu_set_t all; /* before any choice */
    cpu_set_t own;
    if (CPU_COUNT(&all) == 0 && sched_getaffinity(0, sizeof all, &all) != 0)
        return;
    if (CPU_COUNT(&all) < 2)
        return;
    int last = CPU_SETSIZE - 1;
    while (!CPU_ISSET(last, &all))
        last--;
    own = all;
    CPU_CLR(last, &own);
    if (mock) {
        CPU_ZERO(&own);
        CPU_SET(last, &own);
    }
    sched_setaffinity(0, sizeof own, &own);
}

static void launch(struct rig *rig, const char *arguments) {
    const char *program = getenv("WEIR_MOCK");
    char *argv[64] = {(char *)(uintptr_t)program, (char *)(uintptr_t) "--log", rig->log};
    char *copy = strdup(arguments), *rest = copy;
    int pipes[2], n = 3;
    assert_non_null(program);
    for (char *word; (word = strsep(&rest, " ")) && n < 62;)
        if (*word)
            argv[n++] = word;
    snprintf(rig->log, sizeof rig->log, "/tmp/weir-mock-%d.log", (int)getpid());
    assert_int_equal(pipe(pipes), 0);
    rig->pid = fork();
    if (rig->pid == 0) {
        choose_processors(true);
        dup2(pipes[1], 1);
        close(pipes[0]);
        execv(program, argv);
        _exit(127);
    }
    close(pipes[1]);
    FILE *in = fdopen(pipes[0], "r");
    int port = 0;
    assert_int_equal(fscanf(in, "ready %d", &port), 1);
    fclose(in);
    free(copy);
    snprintf(rig->url, sizeof rig->url, "http://127.0.0.1:%d", port);
    rig->unix_offset = clock_of(CLOCK_REALTIME) - clock_of(CLOCK_MONOTONIC);
    rig->options.client.url = rig->url;
}

void rig_start(struct rig *rig, const char *arguments) {
    memset(rig, 0, sizeof *rig);
    choose_processors(false);
    launch(rig, arguments);
    rig->options.client.connect_seconds = 20;
    rig->options.client.silence_seconds = 30;
    rig->options.client.streams = 1024;
    rig->options.length_scale = 1;
    rig->options.trace = &rig->trace;
    rig->options.tree = &rig->tree;
}

void rig_random(struct rig *rig, uint32_t lanes, uint32_t prompts, uint64_t in, uint64_t out,
                double range) {
    struct trace_random r = {.requests = prompts, .in = in, .out = out, .range = range, .seed = 1};
    assert_int_equal(trace_random(&r, &rig->trace, NULL), WEIR_OK);
    assert_int_equal(tree_build(&rig->trace, &rig->tree, NULL), WEIR_OK);
    rig->options.lanes = (struct lanes_options){.lanes = lanes,
                                                .seed = 1,
                                                .once = true,
                                                .start_max = 1,
                                                .warmup_calls = UINT32_MAX,
                                                .time_scale = 1};
}

void rig_weka(struct rig *rig, const char *text, uint32_t lanes, double seconds) {
    FILE *in = fmemopen((void *)(uintptr_t)text, strlen(text), "rb");
    weir_error err = {0};
    if (trace_read_stream(in, "trace", TRACE_WEKA, NULL, &rig->trace, &err))
        fail_msg("%s: %s", err.where, err.message);
    fclose(in);
    assert_int_equal(tree_build(&rig->trace, &rig->tree, NULL), WEIR_OK);
    rig->options.lanes = lanes_options_default();
    rig->options.lanes.lanes = lanes;
    rig->options.lanes.duration = (int64_t)(seconds * 1e9);
}

static struct mock_request *request_at(struct rig *rig, uint32_t n) {
    if (n >= rig->n_requests) {
        rig->request = realloc(rig->request, (n + 1) * sizeof *rig->request);
        assert_non_null(rig->request);
        memset(rig->request + rig->n_requests, 0, (n + 1 - rig->n_requests) * sizeof *rig->request);
        rig->n_requests = n + 1;
    }
    return &rig->request[n];
}

static void read_line(struct rig *rig, const char *line) {
    struct mock_request *r;
    struct mock_piece p;
    uint32_t n, index;
    int at;
    if (sscanf(line, "open %u ", &n) == 1) {
        r = request_at(rig, n);
        assert_int_equal(sscanf(line, "open %u %23s %" SCNd64, &n, r->lie, &r->first_byte), 3);
    } else if (sscanf(line, "sent %u %u %" SCNd64 " %" SCNd64 " %" SCNd64, &n, &index, &p.planned,
                      &p.before, &p.after) == 5) {
        r = request_at(rig, n);
        if (r->n_pieces == r->room) {
            r->room = 2 * r->room + 64;
            r->piece = realloc(r->piece, r->room * sizeof *r->piece);
            assert_non_null(r->piece);
        }
        r->piece[r->n_pieces++] = p;
    } else if (sscanf(line, "prompt %u%n", &n, &at) == 1) {
        r = request_at(rig, n);
        r->block = malloc(strlen(line) / 16 * sizeof *r->block + 8);
        unsigned long long h;
        int used;
        for (line += at; sscanf(line, " %16llx%n", &h, &used) == 1; line += used)
            r->block[r->n_blocks++] = h;
    }
}

static void end_mock(struct rig *rig) {
    int status;
    if (rig->pid <= 0)
        return;
    kill(rig->pid, SIGTERM);
    waitpid(rig->pid, &status, 0);
    rig->pid = 0;
    FILE *in = fopen(rig->log, "r");
    char *line = NULL;
    size_t room = 0;
    assert_non_null(in);
    while (getline(&line, &room, in) >= 0)
        read_line(rig, line);
    free(line);
    fclose(in);
    unlink(rig->log);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

void rig_run(struct rig *rig) {
    weir_error err = {0};
    if (replay_run(&rig->options, &rig->run, &err))
        fail_msg("%s: %s", err.where, err.message);
    assert_int_equal(run_summarise(&rig->run, &rig->summary, &err), WEIR_OK);
    end_mock(rig);
}

const struct mock_request *rig_request(const struct rig *rig, const struct call_record *c) {
    uint32_t n;
    if (sscanf(c->server_id, "mock-%u", &n) != 1 || n == 0 || n > rig->n_requests)
        return NULL;
    return &rig->request[n - 1];
}

static void forget(struct rig *rig) {
    end_mock(rig);
    run_free(&rig->run);
    for (uint32_t i = 0; i < rig->n_requests; i++) {
        free(rig->request[i].piece);
        free(rig->request[i].block);
    }
    free(rig->request);
    rig->request = NULL;
    rig->n_requests = 0;
    memset(&rig->run, 0, sizeof rig->run);
}

void rig_free(struct rig *rig) {
    forget(rig);
    tree_free(&rig->tree);
    trace_free(&rig->trace);
}

void rig_again(struct rig *rig, const char *arguments) {
    forget(rig);
    launch(rig, arguments);
}
