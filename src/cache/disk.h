/* disk.h: the disk tier with its adjustments, for tests. Inside of the cache room. */
#ifndef WEIR_CACHE_DISK_H
#define WEIR_CACHE_DISK_H

#include "cache/disk_io.h"

struct disk_tuning {
    enum disk_way way;
    double pause;      /* seconds before what failed is tried again */
    double note_every; /* seconds between writes of the order of use */
    uint64_t most_storing_bytes;
};
weir_status disk_open_tuned(const struct tier_setup *s, const char *directory, uint64_t bytes,
                            const struct disk_tuning *tuning, struct tier **out, weir_error *err);

#endif
