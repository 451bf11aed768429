/* run_log.c: appends records to profile_export.jsonl while a run goes on. Called by `bench replay`
 * and `bench sweep`. Invariant that bites: the thread that stamps arrivals may not wait here,
 * neither for the disk nor for JSON to be made; it hands over a copy and goes on. */
#include "trace/run_log.h"

#include "base/file.h"
#include "trace/run_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

static const char *const files[] = {"profile_export.jsonl",
                                    "profile_export_aiperf.json",
                                    "profile_export_aiperf.csv",
                                    "inferencex.json",
                                    "timeline.jsonl",
                                    "run.json"};
enum { FILES = sizeof files / sizeof *files };

struct entry {
    struct call_record r; /* owns its chunks and its name */
    struct entry *next;
};

struct run_log {
    char *dir;
    int folder, fd; /* the directory, which is locked; the records */
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more;
    struct entry *first, **last;
    bool ends, made, moved; /* made: the directory; moved: what was in it, all of it */
    _Atomic int error;
};

/* ------------------------------------------------------------------------------------- writing */

static void entry_free(struct entry *e) {
    call_record_free(&e->r);
    free((char *)(uintptr_t)e->r.conversation);
    free(e);
}

/* A line is there whole or not at all, so that what is left can be read. */
static int write_line(int fd, const char *text, size_t n) {
    off_t begin = lseek(fd, 0, SEEK_CUR);
    for (size_t done = 0; done < n;) {
        ssize_t w = write(fd, text + done, n - done);
        if (w < 0 && errno == EINTR)
            continue;
        if (w < 0) {
            int why = errno;
            if (begin >= 0 && ftruncate(fd, begin) == 0)
                lseek(fd, begin, SEEK_SET);
            return why;
        }
        done += (size_t)w;
    }
    return 0;
}

static int write_record(struct run_log *l, const struct call_record *r) {
    json_t *o = record_json(r);
    char *text = o ? json_dumps(o, JSON_COMPACT | JSON_REAL_PRECISION(15)) : NULL, *line = NULL;
    int n = text ? asprintf(&line, "%s\n", text) : -1;
    int why = n < 0 ? ENOMEM : write_line(l->fd, line, (size_t)n);
    if (n >= 0)
        free(line);
    free(text);
    json_decref(o);
    return why;
}

static void *work(void *arg) {
    struct run_log *l = arg;
    pthread_mutex_lock(&l->lock);
    while (l->first || !l->ends) {
        struct entry *e = l->first;
        if (!e) {
            pthread_cond_wait(&l->more, &l->lock);
            continue;
        }
        l->first = e->next;
        if (!l->first)
            l->last = &l->first;
        pthread_mutex_unlock(&l->lock);
        if (!l->error)
            l->error = write_record(l, &e->r);
        entry_free(e);
        pthread_mutex_lock(&l->lock);
    }
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

void run_log_add(struct run_log *l, const struct call_record *r) {
    struct entry *e = l->error ? NULL : calloc(1, sizeof *e);
    size_t bytes = r->n_chunks * sizeof *r->chunk;
    if (!e)
        return;
    e->r = *r;
    e->r.chunk = malloc(bytes + 1);
    e->r.chunk_room = r->n_chunks;
    e->r.conversation = strdup(r->conversation ? r->conversation : "");
    if (!e->r.chunk || !e->r.conversation) {
        entry_free(e);
        return;
    }
    if (bytes)
        memcpy(e->r.chunk, r->chunk, bytes);
    pthread_mutex_lock(&l->lock);
    *l->last = e;
    l->last = &e->next;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
}

int run_log_error(const struct run_log *l) {
    return l->error;
}

/* ------------------------------------------------------------------------------------- opening */

static weir_status take(struct run_log *l, weir_error *err) {
    l->folder = open(l->dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (l->folder < 0)
        return weir_fail(err, WEIR_BAD_FILE, l->dir, "cannot be opened: %s", strerror(errno));
    /* Where a file system has no locks, the last one wins as before. */
    if (flock(l->folder, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK)
        return weir_fail(err, WEIR_BAD_FILE, l->dir,
                         "another run is being written into it; every run needs a directory of its "
                         "own");
    return WEIR_OK;
}

static void beside(const char *name, char out[64]) {
    snprintf(out, 64, "%s.before", name);
}

static bool has(const struct run_log *l, const char *name) {
    return faccessat(l->folder, name, F_OK, 0) == 0;
}

/* What stays of an older run beside the new one would be taken for its. One run is kept; of one
 * that was never finished and a whole one before it, the whole one. */
static weir_status move_aside(struct run_log *l, weir_error *err) {
    char to[64];
    bool keep = has(l, "run.json.before") && !has(l, "inferencex.json");
    for (int i = 0; i < FILES; i++) {
        beside(files[i], to);
        unlinkat(l->folder, keep ? files[i] : to, 0);
    }
    for (int i = 0; i < FILES && !keep; i++) {
        beside(files[i], to);
        if (renameat(l->folder, files[i], l->folder, to) && errno != ENOENT)
            return weir_fail(err, WEIR_BAD_FILE, l->dir, "its %s cannot be moved: %s", files[i],
                             strerror(errno));
    }
    l->moved = true;
    return WEIR_OK;
}

static void put_back(struct run_log *l) {
    char from[64];
    for (int i = 0; i < FILES; i++) {
        beside(files[i], from);
        if (renameat(l->folder, from, l->folder, files[i]) && errno == ENOENT && l->moved)
            unlinkat(l->folder, files[i], 0);
    }
    if (l->made)
        rmdir(l->dir);
}

/* A run of which nothing is known but what was asked for. */
static json_t *first_config(const struct run *r) {
    static char unfinished[] = "unfinished: the program ended before the run did";
    struct run_summary *s = malloc(sizeof *s);
    struct run begun = *r;
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    begun.started = (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
    begun.abort_reason = unfinished;
    json_t *o = s && !run_summarise(&begun, s, NULL) ? run_config_json(&begun, s) : NULL;
    free(s);
    if (o)
        json_object_set_new(o, "calls", json_null());
    return o;
}

static weir_status write_first(struct run_log *l, const struct run *r, weir_error *err) {
    json_t *o = first_config(r);
    char *text = o ? json_dumps(o, JSON_INDENT(2) | JSON_REAL_PRECISION(15)) : NULL;
    json_decref(o);
    if (!text)
        return weir_fail(err, WEIR_NO_MEMORY, l->dir, "no memory to write it");
    int fd = openat(l->folder, "run.json", O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int why = fd < 0 ? errno : write_line(fd, text, strlen(text));
    if (fd >= 0 && close(fd) && !why)
        why = errno;
    free(text);
    l->fd = why ? -1
                : openat(l->folder, "profile_export.jsonl",
                         O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    if (!why && l->fd < 0)
        why = errno;
    return why ? weir_fail(err, WEIR_BAD_FILE, l->dir, "cannot be written: %s", strerror(why))
               : WEIR_OK;
}

static void release(struct run_log *l) {
    if (l->fd >= 0)
        close(l->fd);
    if (l->folder >= 0)
        close(l->folder);
    free(l->dir);
    free(l);
}

weir_status run_log_open(const char *dir, const struct run *r, struct run_log **out,
                         weir_error *err) {
    bool made = access(dir, F_OK) != 0;
    weir_status s = run_folder_refuse(dir, err);
    if (!s)
        s = run_prepare(dir, err);
    struct run_log *l = s ? NULL : calloc(1, sizeof *l);
    if (s)
        return s;
    if (!l)
        return weir_fail(err, WEIR_NO_MEMORY, dir, "no memory to write it");
    l->folder = l->fd = -1;
    l->made = made;
    l->last = &l->first;
    l->dir = strdup(dir);
    s = l->dir ? take(l, err) : weir_fail(err, WEIR_NO_MEMORY, dir, "no memory to write it");
    bool taken = !s;
    if (!s)
        s = move_aside(l, err);
    if (!s)
        s = write_first(l, r, err);
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->more, NULL);
    if (!s && pthread_create(&l->thread, NULL, work, l))
        s = weir_fail(err, WEIR_NO_MEMORY, dir, "no thread to write it");
    if (s) {
        if (taken)
            put_back(l);
        release(l);
        return s;
    }
    *out = l;
    return WEIR_OK;
}

/* ------------------------------------------------------------------------------------- closing */

static void stop(struct run_log *l) {
    pthread_mutex_lock(&l->lock);
    l->ends = true;
    pthread_cond_signal(&l->more);
    pthread_mutex_unlock(&l->lock);
    pthread_join(l->thread, NULL);
    pthread_mutex_destroy(&l->lock);
    pthread_cond_destroy(&l->more);
}

void run_log_close(struct run_log *l) {
    char name[64];
    stop(l);
    for (int i = 0; i < FILES; i++) {
        beside(files[i], name);
        unlinkat(l->folder, name, 0);
    }
    release(l);
}

void run_log_undo(struct run_log *l) {
    stop(l);
    put_back(l);
    release(l);
}

void run_log_leave(struct run_log *l) {
    stop(l);
    release(l);
}
