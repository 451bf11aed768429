/* remote_address.h: where the remote store is: "redis://[[USER]:PASSWORD@]HOST[:PORT][/DB]". */
#ifndef WEIR_CACHE_REMOTE_ADDRESS_H
#define WEIR_CACHE_REMOTE_ADDRESS_H

#include "base/error.h"

struct remote_address {
    char host[256], port[8];
    char user[256], password[512]; /* empty: none */
    char db[8];                    /* empty: the server's first */
    char label[288];               /* for logs: host, port and database, never a password */
};

/* Reads `url`. User and password may be percent-encoded ("%40" for '@'); an IPv6 address stands in
 * brackets; the port is 6379 unless given. WEIR_BAD_VALUE names the part that is wrong and the
 * rule, WEIR_UNSUPPORTED answers rediss://; neither message holds anything from before the last
 * '@'. */
weir_status remote_address_read(struct remote_address *out, const char *url, weir_error *err);

#endif
