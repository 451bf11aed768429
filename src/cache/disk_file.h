/* disk_file.h: the files of the disk tier. Inside of the cache room.
 *
 *     DIR/0123456789abcdef/     first 16 digits of the model's fingerprint
 *         lock                  held as long as a process uses the directory; its pid
 *         pages, states         places of one size, aligned to 4096 bytes
 *         pages.table, states.table   a header of 4096 bytes and an entry of 128 for each place
 *         old-1, old-2 ..       what another version or another configuration left
 *
 * A record counts only if its entry is valid. An entry is cleared before its place is written, and
 * written after it, so a process that is killed leaves no entry without its record. After a crash
 * of the machine entry and record may disagree; the checksum finds that out. */
#ifndef WEIR_CACHE_DISK_FILE_H
#define WEIR_CACHE_DISK_FILE_H

#include "cache/shelf.h"

enum { DISK_ALIGN = 4096, DISK_ENTRY = 128 };

/* How records of one kind lie in their file: pieces, each read or written as one and hashed as one.
 * A page is one piece, a state as many layers a piece as fit a megabyte, but one at least. */
struct disk_layout {
    uint64_t place_bytes;  /* a multiple of DISK_ALIGN */
    uint64_t piece_span;   /* from one piece of a place to the next, a multiple of DISK_ALIGN */
    uint32_t pieces;       /* of a record */
    uint32_t piece_layers; /* states: layers of a piece; the last may have fewer */
    uint64_t unit_bytes;   /* page record, or layer of a state record */
};

struct disk_entry {
    struct cache_key key;
    uint32_t kind, position;
    uint64_t generation; /* 0: no record; otherwise larger than that of every earlier one */
    uint64_t sum[2];
    uint64_t use; /* order of use, written late or never: an old value does no harm */
};

struct disk_files {
    char *path; /* DIR/0123456789abcdef */
    int lock;
    int data[SHELF_KINDS], table[SHELF_KINDS];
    bool direct; /* the file system takes O_DIRECT */
    struct disk_layout layout[SHELF_KINDS];
    struct cache_key model;
    struct record_shape shape;
};

struct disk_layout disk_layout_of(const struct record_shape *shape, enum shelf_kind kind);

/* Opens or makes the files of setup->model below `directory` and takes the lock. What cannot be
 * used is moved aside with one line in the log. WEIR_BAD_FILE names what cannot be made, opened or
 * locked. */
weir_status disk_files_open(struct disk_files *f, const struct tier_setup *setup,
                            const char *directory, weir_error *err);
void disk_files_close(struct disk_files *f);
/* The files were deleted: makes new ones in the same place, which hold nothing. On failure all
 * stays as it was. Nobody else may use f meanwhile. */
weir_status disk_files_reopen(struct disk_files *f, weir_error *err);
/* Puts what the tables hold in places that the shelf has onto it, empty as it is: the records used
 * last as far as the budget goes, and gives the bytes of all other places back. *generation: the
 * largest seen; *beyond: how many records did not fit. */
void disk_files_adopt(struct disk_files *f, struct shelf *s, uint64_t *generation,
                      uint64_t *beyond);

/* The following return 0 or an errno; they may block, and any thread may call them for a place that
 * its job has pinned. */
int disk_place_prepare(struct disk_files *f, enum shelf_kind kind, uint32_t place);
int disk_place_give_back(struct disk_files *f, enum shelf_kind kind, uint32_t place);
int disk_entry_clear(struct disk_files *f, enum shelf_kind kind, uint32_t place);
int disk_entry_write(struct disk_files *f, uint32_t place, const struct disk_entry *e);
int disk_use_write(struct disk_files *f, enum shelf_kind kind, uint32_t place, uint64_t use);
/* Entries of a generation below `floor` do not count any more. */
int disk_floor_write(struct disk_files *f, uint64_t floor);
/* Have the files been deleted? */
bool disk_files_gone(const struct disk_files *f);

#endif
