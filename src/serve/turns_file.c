/* turns_file.c: the store of turns on disk: written whole, read record by record.
 *
 *   file    "weirturn", u32 version, u32 record magic (tells the byte order)
 *   record  u32 magic, u32 n, key (32), n ids (i32), SHA-256 of all that, cut to 16 bytes
 *
 * Least recently used first, so that reading restores the order of use. Invariant that bites: a
 * record is believed only with its checksum; behind a damaged one reading goes on at the next magic
 * number, which is larger than any id. */
#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "base/plural.h"
#include "serve/turns_inside.h"

#include <errno.h>
#include <fcntl.h>
#include <openssl/sha.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { VERSION = 1, RECORD_MAGIC = 0x7752EE4E, CHECK_BYTES = 16 };

static const char file_magic[8] = {'w', 'e', 'i', 'r', 't', 'u', 'r', 'n'};

struct file_head {
    char magic[8];
    uint32_t version, record;
};

struct record_head {
    uint32_t magic, n;
    struct turns_key key;
};

/* ---- writing ---- */

static void put_record(struct text *out, const struct turns_entry *e) {
    struct record_head head = {.magic = RECORD_MAGIC, .n = e->n, .key = e->key};
    unsigned char check[SHA256_DIGEST_LENGTH];
    size_t from = out->n;
    text_append(out, (const char *)&head, sizeof head);
    text_append(out, (const char *)e->ids, e->n * sizeof e->ids[0]);
    SHA256((const unsigned char *)out->data + from, out->n - from, check);
    text_append(out, (const char *)check, CHECK_BYTES);
}

static bool write_all(int fd, const char *s, size_t n) {
    while (n > 0) {
        ssize_t did = write(fd, s, n);
        if (did < 0 && errno == EINTR)
            continue;
        if (did <= 0)
            return false;
        s += did;
        n -= (size_t)did;
    }
    return true;
}

static bool write_records(int fd, struct turns_entry **all, size_t n) {
    enum { PIECE = 1 << 20 };
    struct file_head head = {.version = VERSION, .record = RECORD_MAGIC};
    struct text out = {0};
    memcpy(head.magic, file_magic, sizeof head.magic);
    text_append(&out, (const char *)&head, sizeof head);
    bool good = true;
    for (size_t i = 0; i < n && good; i++) {
        put_record(&out, all[i]);
        if (out.n < PIECE)
            continue;
        good = write_all(fd, out.data, out.n);
        text_clear(&out);
    }
    good = good && write_all(fd, out.data, out.n);
    text_free(&out);
    return good;
}

/* The new name lasts once the directory is on disk. A file system that cannot say so is believed.
 */
static void sync_directory(const char *path) {
    const char *slash = strrchr(path, '/');
    char *dir = !slash          ? strdup(".")
                : slash == path ? strdup("/")
                                : strndup(path, (size_t)(slash - path));
    int fd = dir ? open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    free(dir);
    if (fd < 0)
        return;
    fsync(fd);
    close(fd);
}

static weir_status save_entries(struct turns_entry **all, size_t n, const char *path,
                                weir_error *err) {
    size_t bytes = strlen(path) + sizeof ".XXXXXX";
    char *name = malloc(bytes);
    if (!name)
        return weir_fail(err, WEIR_NO_MEMORY, path, "no memory to save turns");
    snprintf(name, bytes, "%s.XXXXXX", path);
    int fd = mkostemp(name, O_CLOEXEC); /* mode 0600: it holds what was said */
    if (fd < 0) {
        int e = errno;
        free(name);
        return weir_fail(err, WEIR_BAD_FILE, path, "no new file can be made beside it: %s",
                         strerror(e));
    }
    bool good = write_records(fd, all, n) && fsync(fd) == 0;
    int e = errno;
    good = close(fd) == 0 && good;
    if (good && rename(name, path) != 0) {
        e = errno;
        good = false;
    }
    if (good)
        sync_directory(path);
    else
        unlink(name);
    free(name);
    return good ? WEIR_OK : weir_fail(err, WEIR_BAD_FILE, path, "cannot be saved: %s", strerror(e));
}

static weir_status save(struct turns *t, const char *path, uint64_t *added, weir_error *err) {
    size_t n;
    struct turns_entry **all = turns_hold_all(t, &n, added);
    if (n && !all)
        return weir_fail(err, WEIR_NO_MEMORY, path, "no memory to save %zu turns", n);
    weir_status s = save_entries(all, n, path, err);
    for (size_t i = 0; i < n; i++)
        turns_let_go(all[i]);
    free(all);
    return s;
}

weir_status turns_save(struct turns *t, const char *path, weir_error *err) {
    uint64_t added;
    return save(t, path, &added, err);
}

/* ---- reading ---- */

/* The record at `at`: its size in bytes, or 0 when there is none that can be believed. `patience`:
 * bytes that may yet be hashed in vain, so that a file full of false heads costs no square. */
static size_t record_at(const struct mapping *m, size_t at, uint32_t vocab, size_t *patience,
                        struct record_head *head, int32_t **ids) {
    unsigned char check[SHA256_DIGEST_LENGTH];
    size_t left = m->bytes - at;
    if (left < sizeof *head + CHECK_BYTES)
        return 0;
    memcpy(head, m->data + at, sizeof *head);
    if (head->magic != RECORD_MAGIC || head->n > (left - sizeof *head - CHECK_BYTES) / sizeof **ids)
        return 0;
    size_t bytes = sizeof *head + head->n * sizeof **ids;
    if (bytes > *patience)
        return 0;
    SHA256(m->data + at, bytes, check);
    if (memcmp(check, m->data + at + bytes, CHECK_BYTES) != 0) {
        *patience -= bytes;
        return 0;
    }
    int32_t *grown = realloc(*ids, head->n * sizeof **ids + 1);
    if (!grown)
        return 0;
    *ids = grown;
    memcpy(grown, m->data + at + sizeof *head, head->n * sizeof **ids);
    for (size_t i = 0; i < head->n; i++)
        if (grown[i] < 0 || (uint32_t)grown[i] >= vocab)
            return 0;
    return bytes + CHECK_BYTES;
}

static size_t next_record(const struct mapping *m, size_t at) {
    const uint32_t magic = RECORD_MAGIC;
    const unsigned char *found =
        at < m->bytes ? memmem(m->data + at, m->bytes - at, &magic, sizeof magic) : NULL;
    return found ? (size_t)(found - m->data) : m->bytes;
}

static weir_status load_records(struct turns *t, const char *path, const struct mapping *m,
                                uint32_t vocab, weir_error *err) {
    struct file_head head;
    if (m->bytes < sizeof head)
        return weir_fail(err, WEIR_BAD_FILE, path, "is too short to be a file of turns");
    memcpy(&head, m->data, sizeof head);
    if (memcmp(head.magic, file_magic, sizeof head.magic) != 0 || head.record != RECORD_MAGIC)
        return weir_fail(err, WEIR_BAD_FILE, path, "is not a file of turns of this machine's kind");
    if (head.version != VERSION)
        return weir_fail(err, WEIR_BAD_FILE, path, "has version %" PRIu32 ", this program reads %d",
                         head.version, VERSION);
    int32_t *ids = NULL;
    size_t at = sizeof head, good = 0, damaged = 0, patience = 4 * m->bytes;
    while (at < m->bytes) {
        struct record_head record;
        size_t bytes = record_at(m, at, vocab, &patience, &record, &ids);
        if (bytes) {
            turns_put(t, &record.key, ids, record.n);
            good++;
            at += bytes;
        } else {
            damaged += m->bytes - at;
            at = next_record(m, at + 1);
            damaged -= m->bytes - at;
        }
    }
    free(ids);
    if (damaged)
        log_line(LOG_WARN, "%s: %zu %s damaged and left out, %zu %s read", path, damaged,
                 plural(damaged, "byte is", "bytes are"), good,
                 plural(good, "turn was", "turns were"));
    return WEIR_OK;
}

weir_status turns_load(struct turns *t, const char *path, uint32_t vocab, weir_error *err) {
    struct mapping m;
    struct stat st;
    if (stat(path, &st) != 0 && errno == ENOENT)
        return WEIR_OK;
    weir_status s = file_map(path, &m, err);
    if (s != WEIR_OK)
        return s;
    s = load_records(t, path, &m, vocab, err);
    file_unmap(&m);
    pthread_mutex_lock(&t->lock);
    t->saved = t->added;
    pthread_mutex_unlock(&t->lock);
    return s;
}

weir_status turns_move_aside(const char *path, char *to, size_t cap, weir_error *err) {
    enum { MOST = 10000 };
    struct stat st;
    for (int i = 1; i < MOST; i++) {
        int n = snprintf(to, cap, "%s.old-%d", path, i);
        if (n < 0 || (size_t)n >= cap)
            break;
        if (lstat(to, &st) == 0)
            continue;
        return rename(path, to) == 0 ? WEIR_OK
                                     : weir_fail(err, WEIR_BAD_FILE, path,
                                                 "cannot be moved to %s: %s", to, strerror(errno));
    }
    return weir_fail(err, WEIR_BAD_FILE, path, "cannot be moved aside: no name is free");
}

/* ---- the keeper ---- */

static void save_if_new(struct turns *t) {
    weir_error err = {0};
    uint64_t added;
    pthread_mutex_lock(&t->lock);
    bool is_new = t->added != t->saved;
    pthread_mutex_unlock(&t->lock);
    if (!is_new)
        return;
    if (save(t, t->path, &added, &err) == WEIR_OK)
        t->saved = added;
    else
        log_line(LOG_WARN, "turns are not saved: %s: %s", err.where, err.message);
}

static struct timespec in_seconds(double seconds) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    double whole = (double)(int64_t)seconds;
    at.tv_sec += (time_t)whole;
    at.tv_nsec += (long)((seconds - whole) * 1e9);
    if (at.tv_nsec >= 1000000000) {
        at.tv_nsec -= 1000000000;
        at.tv_sec++;
    }
    return at;
}

static void *keep(void *arg) {
    struct turns *t = arg;
    bool stop = false;
    while (!stop) {
        struct timespec until = in_seconds(t->seconds);
        pthread_mutex_lock(&t->lock);
        while (!t->stop && pthread_cond_timedwait(&t->wake, &t->lock, &until) != ETIMEDOUT)
            continue;
        stop = t->stop;
        pthread_mutex_unlock(&t->lock);
        save_if_new(t);
    }
    return NULL;
}

bool turns_keep(struct turns *t, const char *path, double seconds) {
    WEIR_ASSERT(!t->keeps);
    t->path = strdup(path);
    t->seconds = seconds;
    if (!t->path)
        return false;
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&t->wake, &attributes);
    pthread_condattr_destroy(&attributes);
    t->keeps = pthread_create(&t->keeper, NULL, keep, t) == 0;
    if (!t->keeps)
        pthread_cond_destroy(&t->wake);
    return t->keeps;
}

void turns_keep_stop(struct turns *t) {
    if (!t->keeps)
        return;
    pthread_mutex_lock(&t->lock);
    t->stop = true;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->keeper, NULL);
    pthread_cond_destroy(&t->wake);
}
