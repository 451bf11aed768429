/* disk_file.c: directory, lock, tables and places of the disk tier. Called by disk.c when it opens
 * and closes, and by disk_io.c on the threads that move bytes.
 * Invariant that bites: nothing that was read from a file is trusted before its checksum was
 * compared, the sizes and numbers in it included. */
#include "cache/disk_file.h"

#include "base/file.h"
#include "base/log.h"
#include "cache/disk_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stddef.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

static const char *const file_name[SHELF_KINDS] = {"pages", "states"};
static const char *const table_name[SHELF_KINDS] = {"pages.table", "states.table"};

/* Written as it lies in memory: a machine of the other byte order sees another magic number. */
static const uint64_t disk_magic = 0x7265697765686361u;
enum { DISK_VERSION = 1 };

struct disk_header {
    uint64_t magic;
    uint32_t version, kind;
    struct cache_key model;
    uint64_t place_bytes, piece_span, unit_bytes;
    uint32_t pieces, piece_layers;
    uint32_t layers, heads, dim, window;
    uint64_t floor;
    uint64_t check; /* of all before it */
};
_Static_assert(sizeof(struct disk_header) <= DISK_ALIGN, "header");

struct disk_row {
    struct cache_key key;
    uint32_t kind, position;
    uint64_t generation, sum[2];
    uint64_t place;
    uint64_t reserved[5];
    uint64_t check; /* of all before it */
    uint64_t use;
};
_Static_assert(sizeof(struct disk_row) == DISK_ENTRY, "entry");

static uint64_t round_up(uint64_t n, uint64_t to) {
    return (n + to - 1) / to * to;
}

struct disk_layout disk_layout_of(const struct record_shape *shape, enum shelf_kind kind) {
    struct disk_layout l = {.pieces = 1, .piece_layers = 0};
    if (kind == SHELF_PAGE) {
        l.unit_bytes = shape->page_bytes;
        l.piece_span = round_up(shape->page_bytes, DISK_ALIGN);
    } else if (shape->layers) {
        l.unit_bytes = record_layer_bytes(shape);
        uint64_t fit = ((uint64_t)1 << 20) / (l.unit_bytes ? l.unit_bytes : 1);
        fit = fit < 1 ? 1 : fit > shape->layers ? shape->layers : fit;
        l.piece_layers = (uint32_t)fit;
        l.pieces = (uint32_t)((shape->layers + fit - 1) / fit);
        l.piece_span = round_up(fit * l.unit_bytes, DISK_ALIGN);
    }
    if (!l.piece_span) /* a model without such layers: nothing is ever stored */
        l.piece_span = DISK_ALIGN;
    l.place_bytes = l.pieces * l.piece_span;
    return l;
}

static struct disk_header header_of(const struct disk_files *f, enum shelf_kind kind,
                                    uint64_t floor) {
    const struct disk_layout *l = &f->layout[kind];
    struct disk_header h;
    memset(&h, 0, sizeof h);
    h.magic = disk_magic;
    h.version = DISK_VERSION;
    h.kind = (uint32_t)kind;
    h.model = f->model;
    h.place_bytes = l->place_bytes;
    h.piece_span = l->piece_span;
    h.unit_bytes = l->unit_bytes;
    h.pieces = l->pieces;
    h.piece_layers = l->piece_layers;
    h.layers = f->shape.layers;
    h.heads = f->shape.heads;
    h.dim = f->shape.dim;
    h.window = f->shape.window;
    h.floor = floor;
    h.check = XXH3_64bits(&h, offsetof(struct disk_header, check));
    return h;
}

static int write_all(int fd, const void *data, size_t n, uint64_t at) {
    const char *p = data;
    while (n) {
        ssize_t done = pwrite(fd, p, n, (off_t)at);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? errno : ENOSPC;
        p += done;
        n -= (size_t)done;
        at += (uint64_t)done;
    }
    return 0;
}

/* Bytes read; fewer at the end of the file or of its readable part. */
static size_t read_all(int fd, void *data, size_t n, uint64_t at) {
    size_t got = 0;
    while (got < n) {
        ssize_t done = pread(fd, (char *)data + got, n - got, (off_t)(at + got));
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            break;
        got += (size_t)done;
    }
    return got;
}

static int write_header(const struct disk_files *f, int fd, enum shelf_kind kind, uint64_t floor) {
    char block[DISK_ALIGN] = {0};
    struct disk_header h = header_of(f, kind, floor);
    memcpy(block, &h, sizeof h);
    return write_all(fd, block, sizeof block, 0);
}

/* ------------------------------------------------------------------------------------------------
 * opening */

static weir_status cannot(weir_error *err, const char *path, const char *what) {
    return weir_fail(err, WEIR_BAD_FILE, path, "cannot %s: %s", what, strerror(errno));
}

static weir_status take_lock(struct disk_files *f, weir_error *err) {
    char *path = file_join(f->path, "lock");
    if (!path)
        return weir_fail(err, WEIR_NO_MEMORY, f->path, "no memory");
    weir_status st = WEIR_OK;
    char text[32] = {0};
    f->lock = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (f->lock < 0) {
        st = cannot(err, path, "open");
    } else if (flock(f->lock, LOCK_EX | LOCK_NB) != 0) {
        size_t n = errno == EWOULDBLOCK ? read_all(f->lock, text, sizeof text - 1, 0) : 0;
        text[strspn(text, "0123456789")] = 0;
        st = n ? weir_fail(err, WEIR_BAD_FILE, f->path,
                           "is used by process %s; every server needs a directory of its own", text)
               : cannot(err, path, "lock");
    } else {
        int n = snprintf(text, sizeof text, "%ld\n", (long)getpid());
        if (ftruncate(f->lock, 0) != 0 || write_all(f->lock, text, (size_t)n, 0) != 0)
            log_line(LOG_WARN, "%s: cannot write the process id", path); /* the lock holds anyway */
    }
    free(path);
    return st;
}

/* Why the files of a kind cannot be gone on with; NULL: they can, or there are none. */
static const char *why_not(const struct disk_files *f, int dir, enum shelf_kind kind, bool *none) {
    struct stat st;
    *none = false;
    int fd = openat(dir, table_name[kind], O_RDONLY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT) {
        *none = true;
        return fstatat(dir, file_name[kind], &st, 0) == 0 && st.st_size ? "has lost its table"
                                                                        : NULL;
    }
    struct disk_header h;
    bool whole = fd >= 0 && read_all(fd, &h, sizeof h, 0) == sizeof h;
    if (fd >= 0)
        close(fd);
    if (!whole)
        return "has no readable header";
    if (h.magic != disk_magic)
        return "has a header of something else";
    if (h.version != DISK_VERSION)
        return "has another format version";
    if (h.check != XXH3_64bits(&h, offsetof(struct disk_header, check)))
        return "has a damaged header";
    struct disk_header want = header_of(f, kind, h.floor);
    return memcmp(&h, &want, sizeof h) != 0 ? "belongs to another model or configuration" : NULL;
}

/* Moves the set aside as a whole: pages without their states are of no use, nor the other way
 * round. */
static weir_status move_aside(const struct disk_files *f, int dir, enum shelf_kind kind,
                              const char *why, weir_error *err) {
    char name[32], to[64];
    int i = 1;
    do
        snprintf(name, sizeof name, "old-%d", i);
    while (mkdirat(dir, name, 0700) != 0 && errno == EEXIST && ++i < 10000);
    for (int k = 0; k < 2 * SHELF_KINDS; k++) {
        const char *from = k < SHELF_KINDS ? file_name[k] : table_name[k - SHELF_KINDS];
        snprintf(to, sizeof to, "%s/%s", name, from);
        if (renameat(dir, from, dir, to) != 0 && errno != ENOENT)
            return cannot(err, f->path, "move its files aside");
    }
    log_line(LOG_WARN,
             "%s: %s %s; it was moved to %s, which may be deleted, and the cache starts "
             "empty",
             f->path, table_name[kind], why, name);
    return WEIR_OK;
}

static weir_status make_table(const struct disk_files *f, int dir, enum shelf_kind kind,
                              weir_error *err) {
    char fresh[32];
    snprintf(fresh, sizeof fresh, "%s.new", table_name[kind]);
    int fd = openat(dir, fresh, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    if (fd < 0)
        return cannot(err, f->path, "make a file");
    errno = write_header(f, fd, kind, 0);
    close(fd);
    if (errno || renameat(dir, fresh, dir, table_name[kind]) != 0)
        return cannot(err, f->path, "write");
    return WEIR_OK;
}

/* Some file systems take the flag and refuse the transfer. */
static bool takes_direct(int dir) {
    void *block = NULL;
    int fd = openat(dir, "probe", O_RDWR | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0600);
    bool ok = fd >= 0 && posix_memalign(&block, DISK_ALIGN, DISK_ALIGN) == 0;
    if (ok) {
        memset(block, 0, DISK_ALIGN);
        ok = pwrite(fd, block, DISK_ALIGN, 0) == DISK_ALIGN &&
             pread(fd, block, DISK_ALIGN, 0) == DISK_ALIGN;
    }
    if (fd >= 0)
        close(fd);
    unlinkat(dir, "probe", 0);
    free(block);
    return ok;
}

static weir_status open_set(struct disk_files *f, int dir, weir_error *err) {
    bool none[SHELF_KINDS];
    const char *why[SHELF_KINDS];
    weir_status st = WEIR_OK;
    for (int k = 0; k < SHELF_KINDS; k++)
        why[k] = why_not(f, dir, (enum shelf_kind)k, &none[k]);
    for (int k = 0; k < SHELF_KINDS; k++)
        if (!why[k] && none[k] && !none[!k])
            why[k] = "is missing";
    for (int k = 0; k < SHELF_KINDS; k++)
        if (why[k]) {
            st = move_aside(f, dir, (enum shelf_kind)k, why[k], err);
            none[0] = none[1] = true;
            break;
        }
    f->direct = takes_direct(dir);
    for (int k = 0; k < SHELF_KINDS && st == WEIR_OK; k++) {
        int flags = O_RDWR | O_CREAT | O_CLOEXEC | (f->direct ? O_DIRECT : 0);
        f->data[k] = openat(dir, file_name[k], flags, 0600);
        if (f->data[k] < 0)
            return cannot(err, f->path, "open its files");
    }
    /* Tables last: a process killed here leaves empty files without one. */
    for (int k = 0; k < SHELF_KINDS && st == WEIR_OK; k++) {
        if (none[k])
            st = make_table(f, dir, (enum shelf_kind)k, err);
        f->table[k] = st == WEIR_OK ? openat(dir, table_name[k], O_RDWR | O_CLOEXEC) : -1;
        if (st == WEIR_OK && f->table[k] < 0)
            return cannot(err, f->path, "open its tables");
    }
    return st;
}

static weir_status open_path(struct disk_files *f, weir_error *err) {
    f->lock = -1;
    for (int k = 0; k < SHELF_KINDS; k++)
        f->data[k] = f->table[k] = -1;
    weir_status st = disk_dir_make(f->path, err);
    if (st == WEIR_OK)
        st = take_lock(f, err);
    if (st != WEIR_OK)
        return st;
    int dir = open(f->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    st = dir < 0 ? cannot(err, f->path, "open") : open_set(f, dir, err);
    if (dir >= 0)
        close(dir);
    return st;
}

weir_status disk_files_open(struct disk_files *f, const struct tier_setup *setup,
                            const char *directory, weir_error *err) {
    char hex[CACHE_KEY_HEX];
    memset(f, 0, sizeof *f);
    f->lock = -1;
    for (int k = 0; k < SHELF_KINDS; k++) {
        f->data[k] = f->table[k] = -1;
        f->layout[k] = disk_layout_of(setup->shape, (enum shelf_kind)k);
    }
    f->model = setup->model;
    f->shape = *setup->shape;
    cache_key_hex(&setup->model, hex);
    hex[16] = 0;
    if (!*directory)
        return weir_fail(err, WEIR_BAD_FILE, "\"\"", "is no directory name");
    f->path = file_join(directory, hex);
    if (!f->path)
        return weir_fail(err, WEIR_NO_MEMORY, directory, "no memory");
    weir_status st = open_path(f, err);
    if (st != WEIR_OK)
        disk_files_close(f);
    return st;
}

static void close_all(struct disk_files *f) {
    for (int k = 0; k < SHELF_KINDS; k++) {
        if (f->data[k] >= 0)
            close(f->data[k]);
        if (f->table[k] >= 0)
            close(f->table[k]);
        f->data[k] = f->table[k] = -1;
    }
    if (f->lock >= 0)
        close(f->lock);
    f->lock = -1;
}

void disk_files_close(struct disk_files *f) {
    close_all(f);
    free(f->path);
    f->path = NULL;
}

weir_status disk_files_reopen(struct disk_files *f, weir_error *err) {
    struct disk_files fresh = *f;
    weir_status st = open_path(&fresh, err);
    close_all(st == WEIR_OK ? f : &fresh);
    if (st == WEIR_OK)
        *f = fresh;
    return st;
}

bool disk_files_gone(const struct disk_files *f) {
    struct stat st;
    return fstat(f->table[SHELF_PAGE], &st) == 0 && st.st_nlink == 0;
}

/* ------------------------------------------------------------------------------------------------
 * entries */

static uint64_t row_at(uint32_t place) {
    return DISK_ALIGN + (uint64_t)place * DISK_ENTRY;
}

static uint64_t row_check(const struct disk_row *r) {
    return XXH3_64bits(r, offsetof(struct disk_row, check));
}

int disk_entry_clear(struct disk_files *f, enum shelf_kind kind, uint32_t place) {
    static const struct disk_row none;
    return write_all(f->table[kind], &none, sizeof none, row_at(place));
}

int disk_entry_write(struct disk_files *f, uint32_t place, const struct disk_entry *e) {
    struct disk_row r;
    memset(&r, 0, sizeof r);
    r.key = e->key;
    r.kind = e->kind;
    r.position = e->position;
    r.generation = e->generation;
    memcpy(r.sum, e->sum, sizeof r.sum);
    r.place = place;
    r.check = row_check(&r);
    r.use = e->use;
    return write_all(f->table[e->kind], &r, sizeof r, row_at(place));
}

int disk_use_write(struct disk_files *f, enum shelf_kind kind, uint32_t place, uint64_t use) {
    return write_all(f->table[kind], &use, sizeof use,
                     row_at(place) + offsetof(struct disk_row, use));
}

int disk_floor_write(struct disk_files *f, uint64_t floor) {
    int e = 0;
    for (int k = 0; k < SHELF_KINDS; k++) {
        int failed = write_header(f, f->table[k], (enum shelf_kind)k, floor);
        e = e ? e : failed;
    }
    return e;
}

/* ------------------------------------------------------------------------------------------------
 * places */

int disk_place_prepare(struct disk_files *f, enum shelf_kind kind, uint32_t place) {
    int e = disk_entry_clear(f, kind, place);
    if (e)
        return e;
    /* A full disk shows here, before anything was written. */
    uint64_t bytes = f->layout[kind].place_bytes;
    while (fallocate(f->data[kind], 0, (off_t)(place * bytes), (off_t)bytes) != 0)
        if (errno != EINTR)
            return errno == EOPNOTSUPP || errno == ENOSYS ? 0 : errno;
    return 0;
}

static int punch(struct disk_files *f, enum shelf_kind kind, uint32_t place, uint32_t n) {
    uint64_t bytes = f->layout[kind].place_bytes;
    while (fallocate(f->data[kind], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE,
                     (off_t)(place * bytes), (off_t)(n * bytes)) != 0)
        if (errno != EINTR)
            return errno;
    return 0;
}

int disk_place_give_back(struct disk_files *f, enum shelf_kind kind, uint32_t place) {
    int e = disk_entry_clear(f, kind, place);
    return e ? e : punch(f, kind, place, 1);
}

/* ------------------------------------------------------------------------------------------------
 * what an earlier process left */

struct found {
    struct disk_entry e;
    uint32_t place;
};
struct found_list {
    struct found *data;
    size_t n, room;
};

static bool found_add(struct found_list *l, const struct disk_row *r) {
    if (l->n == l->room) {
        size_t room = l->room ? 2 * l->room : 256;
        struct found *more = realloc(l->data, room * sizeof *more);
        if (!more)
            return false;
        l->data = more;
        l->room = room;
    }
    l->data[l->n++] = (struct found){
        .e = {r->key, r->kind, r->position, r->generation, {r->sum[0], r->sum[1]}, r->use},
        .place = (uint32_t)r->place};
    return true;
}

/* *beyond: records in places that there are no more. */
static void read_table(struct disk_files *f, enum shelf_kind kind, uint32_t places,
                       struct found_list *l, uint64_t *generation, uint64_t *beyond) {
    enum { ROWS = 4096 };
    struct disk_header h;
    struct stat st;
    struct disk_row *rows = malloc(ROWS * sizeof *rows);
    if (!rows || fstat(f->data[kind], &st) != 0 ||
        read_all(f->table[kind], &h, sizeof h, 0) != sizeof h) {
        free(rows);
        return;
    }
    *generation = h.floor > *generation ? h.floor : *generation;
    uint64_t before = *beyond;
    uint64_t covered = (uint64_t)st.st_size / f->layout[kind].place_bytes;
    for (uint64_t at = 0; at < covered; at += ROWS) {
        size_t n = read_all(f->table[kind], rows, ROWS * sizeof *rows, row_at((uint32_t)at)) /
                   sizeof *rows;
        for (size_t i = 0; i < n; i++) {
            const struct disk_row *r = &rows[i];
            if (!r->generation || r->check != row_check(r) || r->place != at + i ||
                r->kind != (uint32_t)kind || r->place >= covered || r->generation < h.floor)
                continue;
            if (r->place >= places)
                ++*beyond;
            else if (!found_add(l, r))
                break;
        }
        if (n < ROWS)
            break;
    }
    /* With their bytes given back they would be found anew, and damaged, once there are as many
     * places again. */
    if (*beyond > before && ftruncate(f->table[kind], (off_t)row_at(places)) != 0)
        log_line(LOG_WARN, "%s: cannot shorten %s: %s", f->path, table_name[kind], strerror(errno));
    free(rows);
}

static int by_use(const void *a, const void *b) {
    const struct found *x = a, *y = b;
    return x->e.use < y->e.use ? -1 : x->e.use > y->e.use;
}

/* Bytes behind places that nothing is known of would not be counted. */
static void give_back_unknown(struct disk_files *f, struct shelf *s, enum shelf_kind kind) {
    struct stat st;
    uint32_t places = shelf_places(s, kind), first = 0;
    uint64_t bytes = f->layout[kind].place_bytes;
    if (fstat(f->data[kind], &st) != 0)
        return;
    uint64_t covered = ((uint64_t)st.st_size + bytes - 1) / bytes;
    if (covered > places && ftruncate(f->data[kind], (off_t)(places * bytes)) == 0)
        covered = places;
    uint32_t end = covered < places ? (uint32_t)covered : places;
    for (uint32_t i = 0; i <= end; i++)
        if (i == end || shelf_holds(s, kind, i)) {
            if (i > first && punch(f, kind, first, i - first) != 0)
                return;
            first = i + 1;
        }
}

void disk_files_adopt(struct disk_files *f, struct shelf *s, uint64_t *generation,
                      uint64_t *beyond) {
    struct found_list l = {0};
    *beyond = 0;
    *generation = 0;
    for (int k = 0; k < SHELF_KINDS; k++)
        read_table(f, (enum shelf_kind)k, shelf_places(s, (enum shelf_kind)k), &l, generation,
                   beyond);
    if (l.n)
        qsort(l.data, l.n, sizeof *l.data, by_use);
    uint64_t left = shelf_get_usage(s).budget;
    size_t from = l.n;
    while (from && f->layout[l.data[from - 1].e.kind].place_bytes <= left)
        left -= f->layout[l.data[--from].e.kind].place_bytes;
    *beyond += from;
    for (size_t i = 0; i < l.n; i++) {
        const struct found *d = &l.data[i];
        if (d->e.generation > *generation)
            *generation = d->e.generation;
        struct shelf_record *r = i < from ? NULL
                                          : shelf_adopt(s, (enum shelf_kind)d->e.kind, d->place,
                                                        &d->e.key, d->e.position, d->e.use);
        if (!r) {
            disk_entry_clear(f, (enum shelf_kind)d->e.kind, d->place);
            continue;
        }
        r->sum[0] = d->e.sum[0];
        r->sum[1] = d->e.sum[1];
    }
    free(l.data);
    for (int k = 0; k < SHELF_KINDS; k++)
        give_back_unknown(f, s, (enum shelf_kind)k);
}
