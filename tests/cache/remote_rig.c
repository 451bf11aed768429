/* remote_rig.c: servers, stores and moves for the tests of the remote tier. */
#include "tests/cache/remote_rig.h"

#include "base/log.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* A move that has not ended after this never will: no limit in these tests is as long. */
enum { PATIENCE_SECONDS = 60 };

static void nap_ms(long ms) {
    nanosleep(&(struct timespec){ms / 1000, ms % 1000 * 1000000}, NULL);
}

static int listen_anywhere(int *port) {
    struct sockaddr_in a = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof a;
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&a, size), 0);
    assert_int_equal(listen(fd, 64), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&a, &size), 0);
    *port = ntohs(a.sin_port);
    return fd;
}

/* --- a real server ---------------------------------------------------------------------------- */

static void run_server(const struct rig_server *s, const char *const *options) {
    char port[16];
    const char *arg[32] = {
        "redis-server", "--port", port,    "--bind",     "127.0.0.1",   "--save", "",
        "--appendonly", "no",     "--dir", s->directory, "--daemonize", "no"};
    size_t n = 13;
    snprintf(port, sizeof port, "%d", s->port);
    while (options && *options && n < 31)
        arg[n++] = *options++;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    const int null = open("/dev/null", O_RDWR);
    dup2(null, 0);
    dup2(null, 1);
    char *argv[32];
    memcpy(argv, arg, sizeof argv);
    execvp(argv[0], argv);
    _exit(127);
}

void rig_server_start(struct rig_server *s, int port, const char *const *options) {
    *s = (struct rig_server){.port = port};
    if (port == 0)
        close(listen_anywhere(&s->port));
    snprintf(s->directory, sizeof s->directory, "/tmp/weir-redis-XXXXXX");
    assert_non_null(mkdtemp(s->directory));
    s->pid = fork();
    assert_true(s->pid >= 0);
    if (s->pid == 0)
        run_server(s, options);
    const uint64_t end = clock_ns() + 20 * 1000000000ull;
    for (;;) {
        int status;
        if (waitpid(s->pid, &status, WNOHANG) == s->pid)
            fail_msg("redis-server ended with status %d: is it installed?", status);
        s->raw = redisConnect("127.0.0.1", s->port);
        redisReply *r = s->raw && !s->raw->err ? redisCommand(s->raw, "PING") : NULL;
        if (r) {
            freeReplyObject(r);
            return;
        }
        redisFree(s->raw);
        if (clock_ns() > end)
            fail_msg("redis-server does not answer on port %d", s->port);
        nap_ms(10);
    }
}

static int remove_one(const char *path, const struct stat *st, int kind, struct FTW *at) {
    return remove(path);
}

void rig_server_stop(struct rig_server *s, int signal) {
    int status;
    kill(s->pid, signal);
    waitpid(s->pid, &status, 0);
    redisFree(s->raw);
    nftw(s->directory, remove_one, 8, FTW_DEPTH | FTW_PHYS);
    s->pid = 0;
}

redisReply *rig_do(struct rig_server *s, const char *format, ...) {
    static redisReply *last;
    if (last)
        freeReplyObject(last);
    va_list ap;
    va_start(ap, format);
    last = redisvCommand(s->raw, format, ap);
    va_end(ap);
    if (!last)
        fail_msg("the test's own connection: %s", s->raw->errstr);
    return last;
}

static int by_text(const void *a, const void *b) {
    return strcmp(((redisReply *const *)a)[0]->str, ((redisReply *const *)b)[0]->str);
}

char *rig_key(struct rig_server *s, const char *pattern, size_t n) {
    static char key[4][256];
    static unsigned turn;
    redisReply *r = rig_do(s, "KEYS %s", pattern);
    assert_true(n < r->elements);
    qsort(r->element, r->elements, sizeof *r->element, by_text);
    char *out = key[turn++ % 4];
    snprintf(out, 256, "%s", r->element[n]->str);
    return out;
}

size_t rig_count(struct rig_server *s, const char *pattern) {
    return rig_do(s, "KEYS %s", pattern)->elements;
}

/* --- a server that misbehaves ----------------------------------------------------------------- */

/* How many bytes the first whole command of `text` takes and its first word; 0: not all there. */
static size_t command_length(const char *text, size_t n, char verb[16]) {
    const char *at = text, *end = text + n;
    long words = 0;
    if (sscanf(at, "*%ld\r", &words) != 1 || !(at = memchr(at, '\n', n)))
        return 0;
    at++;
    for (long i = 0; i < words; i++) {
        long length;
        const char *line = at < end ? memchr(at, '\n', (size_t)(end - at)) : NULL;
        if (!line || sscanf(at, "$%ld\r", &length) != 1 || end - line - 1 < length + 2)
            return 0;
        at = line + 1;
        if (i == 0)
            snprintf(verb, 16, "%.*s", (int)length, at);
        at += length + 2;
    }
    return (size_t)(at - text);
}

struct fake_client {
    struct rig_fake *fake;
    int fd;
};

static bool say(int fd, const void *bytes, size_t n) {
    return send(fd, bytes, n, MSG_NOSIGNAL) == (ssize_t)n;
}

/* What the second word of a command names. */
static enum remote_kind name_kind(const char *text, size_t length) {
    const char *at = memmem(text, length, "weir:1:", 7);
    assert(at);
    at += 7 + 32;
    if (at[1] == 'p')
        return REMOTE_PAGE;
    return at[3 + 2 * CACHE_KEY_BYTES] == ':' ? REMOTE_LAYER : REMOTE_MANIFEST;
}

/* Answers one command; false: hang up. */
static bool fake_answer(struct rig_fake *f, int fd, unsigned commands, const char *verb,
                        const char *text, size_t length) {
    char big[4096];
    if (f->fault == RIG_ECHO) {
        memset(big, 0, sizeof big);
        snprintf(big, sizeof big, "-ERR unknown command, with args: %.*s", (int)length, text);
        for (char *c = big; *c; c++)
            *c = *c == '\r' || *c == '\n' ? ' ' : *c;
        return say(fd, big, strlen(big)) && say(fd, "\r\n", 2);
    }
    if (f->fault == RIG_SLOW) {
        nap_ms(100);
        return strcmp(verb, "SET") == 0 ? say(fd, "+OK\r\n", 5) : say(fd, ":0\r\n", 4);
    }
    if (f->fault == RIG_NO_PAGES || f->fault == RIG_NO_LAYERS) {
        if (strcmp(verb, "SET") != 0)
            return say(fd, ":0\r\n", 4);
        const enum remote_kind kind = name_kind(text, length);
        f->pages += kind == REMOTE_PAGE;
        f->layers += kind == REMOTE_LAYER;
        f->manifests += kind == REMOTE_MANIFEST;
        const bool refused = f->fault == RIG_NO_PAGES
                                 ? kind == REMOTE_PAGE
                                 : kind == REMOTE_LAYER && f->layers < RIG_LAYERS;
        return refused ? say(fd, "-OOM no room\r\n", 14) : say(fd, "+OK\r\n", 5);
    }
    if (commands == 0)
        return say(fd, ":0\r\n", 4);
    switch (f->fault) {
    case RIG_TRICKLE:
        if (!say(fd, "$100000\r\n", 9))
            return false;
        while (!f->stop && say(fd, "x", 1))
            nap_ms(20);
        return false;
    case RIG_FLOOD:
        if (!say(fd, "$500000000\r\n", 12))
            return false;
        memset(big, 'x', sizeof big);
        while (!f->stop && say(fd, big, sizeof big))
            ;
        return false;
    case RIG_GARBAGE: return say(fd, "HTTP/1.1 400 Bad Request\r\n\r\n", 28);
    default: return true;
    }
}

static void *fake_serve(void *arg) {
    struct fake_client *c = arg;
    const size_t room = 4 << 20;
    char *text = malloc(room + 1);
    size_t have = 0;
    unsigned commands = 0;
    while (!c->fake->stop) {
        struct pollfd p = {.fd = c->fd, .events = POLLIN};
        if (poll(&p, 1, 20) <= 0)
            continue;
        const ssize_t n = recv(c->fd, text + have, room - have, 0);
        if (n <= 0)
            break;
        have += (size_t)n;
        text[have] = '\0';
        char verb[16] = "";
        size_t length;
        bool going = true;
        while (going && c->fake->fault != RIG_SILENT &&
               (length = command_length(text, have, verb)) > 0) {
            going = fake_answer(c->fake, c->fd, commands++, verb, text, length);
            memmove(text, text + length, have - length + 1);
            have -= length;
        }
        if (!going)
            break;
        if (c->fake->fault == RIG_SILENT || (c->fake->fault == RIG_NO_VALUES && commands > 0))
            have = 0;
    }
    close(c->fd);
    free(text);
    free(c);
    return NULL;
}

static void *fake_main(void *arg) {
    struct rig_fake *f = arg;
    pthread_t client[256];
    unsigned n = 0;
    while (!f->stop) {
        struct pollfd p = {.fd = f->listener, .events = POLLIN};
        if (poll(&p, 1, 20) <= 0 || n == 256)
            continue;
        struct fake_client *c = malloc(sizeof *c);
        *c = (struct fake_client){f, accept4(f->listener, NULL, NULL, SOCK_CLOEXEC)};
        if (pthread_create(&client[n], NULL, fake_serve, c) == 0)
            n++;
    }
    while (n > 0)
        pthread_join(client[--n], NULL);
    return NULL;
}

void rig_fake_start(struct rig_fake *f, enum rig_fault fault) {
    *f = (struct rig_fake){.fault = fault};
    f->listener = listen_anywhere(&f->port);
    assert_int_equal(pthread_create(&f->thread, NULL, fake_main, f), 0);
}

void rig_fake_stop(struct rig_fake *f) {
    f->stop = true;
    pthread_join(f->thread, NULL);
    close(f->listener);
}

/* --- a tier with a store under it ------------------------------------------------------------- */

const struct remote_limits rig_long = {.connect_seconds = 10,
                                       .move_seconds = 20,
                                       .bytes_per_second = 16e6,
                                       .pause_seconds = 0.1,
                                       .pause_most_seconds = 0.4,
                                       .known = 4096,
                                       .stores = 32,
                                       .touch_seconds = 60};
const struct remote_limits rig_short = {.connect_seconds = 1,
                                        .move_seconds = 1.5,
                                        .bytes_per_second = 16e6,
                                        .pause_seconds = 0.1,
                                        .pause_most_seconds = 0.4,
                                        .known = 4096,
                                        .stores = 32,
                                        .touch_seconds = 60};

static void on_end(void *arg) {
    struct rig *r = arg;
    pthread_mutex_lock(&r->lock);
    r->notified++;
    pthread_cond_signal(&r->ended);
    pthread_mutex_unlock(&r->lock);
}

void rig_open_url(struct rig *r, char model, const char *url, const struct remote_limits *limits) {
    const uint32_t heads = 2, dim = 8, window = 3;
    const size_t layer_floats = heads * (dim * dim + 3 * window * dim);
    weir_error err = {0};
    *r = (struct rig){.shape = {RIG_PAGE_BYTES, RIG_LAYERS, heads, dim, window}};
    assert_int_equal(cache_store_open(&r->store, RIG_PAGES, RIG_PAGE_BYTES, 1, DTYPE_F32, RIG_SLOTS,
                                      RIG_LAYERS * layer_floats, layer_floats, &err),
                     WEIR_OK);
    pthread_mutex_init(&r->lock, NULL);
    pthread_cond_init(&r->ended, NULL);
    r->setup = (struct tier_setup){
        .store = &r->store, .shape = &r->shape, .notify = on_end, .notify_arg = r};
    memset(r->setup.model.bytes, model, sizeof r->setup.model.bytes);
    if (remote_open(&r->setup, url, limits, &r->tier, &err) != WEIR_OK)
        fail_msg("%s: %s: %s", url, err.where, err.message);
}

static void open_port(struct rig *r, char model, int port, const struct remote_limits *limits) {
    char url[64];
    snprintf(url, sizeof url, "redis://127.0.0.1:%d", port);
    rig_open_url(r, model, url, limits);
}

void rig_open(struct rig *r, char model, int port) {
    open_port(r, model, port, &rig_long);
}

void rig_open_short(struct rig *r, char model, int port) {
    open_port(r, model, port, &rig_short);
}

void rig_close(struct rig *r) {
    r->tier->close(r->tier);
    cache_store_close(&r->store);
    pthread_mutex_destroy(&r->lock);
    pthread_cond_destroy(&r->ended);
}

struct cache_key rig_block(uint64_t seed, uint32_t i) {
    struct cache_key k;
    for (uint32_t w = 0; w < 4; w++) {
        const uint64_t x = rng_mix(seed * 1000003 + i * 4 + w);
        memcpy(k.bytes + 8 * w, &x, 8);
    }
    return k;
}

static uint32_t word_of(uint64_t seed, uint32_t i, size_t w) {
    return (uint32_t)rng_mix((seed << 32) ^ ((uint64_t)i << 20) ^ w);
}

static bool words(unsigned char *at, size_t bytes, uint64_t seed, uint32_t i, bool fill) {
    for (size_t w = 0; w < bytes / 4; w++) {
        uint32_t x = word_of(seed, i, w), y;
        memcpy(&y, at + 4 * w, 4);
        if (fill)
            memcpy(at + 4 * w, &x, 4);
        else if (x != y)
            return false;
    }
    return true;
}

static size_t slot_bytes(const struct rig *r) {
    return r->store.state.slot_floats * sizeof(float);
}

void rig_fill_page(struct rig *r, int32_t page, uint64_t seed, uint32_t i) {
    words(record_page(&r->store, page), RIG_PAGE_BYTES, seed, i, true);
}

void rig_fill_slot(struct rig *r, int32_t slot, uint64_t seed, uint32_t i) {
    words(record_slot(&r->store, slot), slot_bytes(r), ~seed, i, true);
}

bool rig_page_is(struct rig *r, int32_t page, uint64_t seed, uint32_t i) {
    return words(record_page(&r->store, page), RIG_PAGE_BYTES, seed, i, false);
}

bool rig_slot_is(struct rig *r, int32_t slot, uint64_t seed, uint32_t i) {
    return words(record_slot(&r->store, slot), slot_bytes(r), ~seed, i, false);
}

void rig_clear(struct rig *r) {
    memset(r->store.kv.data, 0, (size_t)RIG_PAGES * RIG_PAGE_BYTES);
    memset(r->store.state.data, 0, RIG_SLOTS * slot_bytes(r));
}

void rig_move_make(struct rig *r, struct rig_move *m, enum tier_task task, uint64_t seed,
                   uint32_t n, bool state, int32_t from, int32_t slot) {
    *m = (struct rig_move){.slot = slot, .seed = seed, .position = n * 64};
    for (uint32_t i = 0; i < n; i++) {
        m->keys[i] = rig_block(seed, i);
        m->pages[i] = from + (int32_t)i;
        if (task == TIER_STORE)
            rig_fill_page(r, m->pages[i], seed, i);
    }
    m->state_key = rig_block(seed, n - 1);
    if (state && task == TIER_STORE)
        rig_fill_slot(r, slot, seed, n);
    m->move = (struct tier_move){.task = task,
                                 .n_pages = n,
                                 .page_keys = m->keys,
                                 .pages = task == TIER_PROBE ? NULL : m->pages,
                                 .n_states = state,
                                 .state_keys = &m->state_key,
                                 .positions = &m->position,
                                 .slots = task == TIER_PROBE ? NULL : &m->slot,
                                 .owner = m,
                                 .result = TIER_RESULTS};
}

void rig_wait(struct rig *r, unsigned n) {
    struct timespec end;
    clock_gettime(CLOCK_REALTIME, &end);
    end.tv_sec += PATIENCE_SECONDS;
    for (;;) {
        for (struct tier_move *m = r->tier->collect(r->tier); m; m = m->next) {
            assert_true(n > 0);
            n--;
        }
        if (n == 0)
            return;
        pthread_mutex_lock(&r->lock);
        int fault = 0;
        while (r->notified == 0 && fault == 0)
            fault = pthread_cond_timedwait(&r->ended, &r->lock, &end);
        r->notified = 0;
        pthread_mutex_unlock(&r->lock);
        if (fault != 0)
            fail_msg("%u moves never end", n);
    }
}

enum tier_result rig_run(struct rig *r, enum tier_task task, uint64_t seed, uint32_t n,
                         bool state) {
    struct rig_move m;
    rig_move_make(r, &m, task, seed, n, state, 0, 0);
    r->tier->submit(r->tier, &m.move);
    rig_wait(r, 1);
    assert_true(m.move.seconds >= 0 && m.move.seconds < PATIENCE_SECONDS);
    return m.move.result;
}

bool rig_loaded(struct rig *r, uint64_t seed, uint32_t n, bool state) {
    for (uint32_t i = 0; i < n; i++)
        if (!rig_page_is(r, (int32_t)i, seed, i))
            return false;
    return !state || rig_slot_is(r, 0, seed, n);
}

bool rig_all_are(struct rig *r, uint64_t seed, uint32_t n, bool state, enum tier_presence p) {
    bool all = true;
    for (uint32_t i = 0; i < n; i++) {
        const struct cache_key key = rig_block(seed, i);
        all = all && r->tier->page(r->tier, &key) == p;
        if (state && i == n - 1)
            all = all && r->tier->state(r->tier, &key, n * 64) == p;
    }
    return all;
}

struct tier_usage rig_usage(struct rig *r) {
    struct tier_usage u;
    r->tier->usage(r->tier, &u);
    return u;
}

void rig_wait_up(struct rig *r, bool up) {
    const uint64_t end = clock_ns() + PATIENCE_SECONDS * 1000000000ull;
    while (rig_usage(r).up != up) {
        if (clock_ns() > end)
            fail_msg("the tier never says %s", up ? "up" : "off");
        nap_ms(5);
    }
}

/* --- the log ---------------------------------------------------------------------------------- */

static int real_stderr = -1, log_fd = -1;

void rig_log_begin(void) {
    char path[] = "/tmp/weir-log-XXXXXX";
    log_fd = mkstemp(path);
    assert_true(log_fd >= 0);
    unlink(path);
    fflush(stderr);
    real_stderr = dup(STDERR_FILENO);
    log_set_level(LOG_INFO);
    dup2(log_fd, STDERR_FILENO);
}

static char *log_text(void) {
    const off_t n = lseek(log_fd, 0, SEEK_END);
    char *text = calloc(1, (size_t)n + 1);
    assert_int_equal(pread(log_fd, text, (size_t)n, 0), n);
    return text;
}

unsigned rig_log_count(const char *s) {
    char *text = log_text(), *rest = text, *line;
    unsigned n = 0;
    while ((line = strsep(&rest, "\n")))
        n += strstr(line, s) != NULL;
    free(text);
    return n;
}

int rig_log_end(void **state) {
    log_set_level(LOG_ERROR);
    if (log_fd < 0)
        return 0;
    char *text = log_text();
    fflush(stderr);
    dup2(real_stderr, STDERR_FILENO);
    fputs(text, stderr);
    free(text);
    close(real_stderr);
    close(log_fd);
    real_stderr = log_fd = -1;
    return 0;
}
