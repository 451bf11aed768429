/* http_tls.c: TLS by option. Called by http_server.c. For a public server a proxy in front is the
 * better place for TLS; this is for the machine next door. */
#include "serve/http_inside.h"

#include <openssl/err.h>

static weir_status fail(weir_error *err, const char *path, SSL_CTX *tls, const char *what) {
    char reason[160];
    unsigned long code = ERR_get_error();
    ERR_error_string_n(code, reason, sizeof reason);
    ERR_clear_error();
    SSL_CTX_free(tls);
    return weir_fail(err, WEIR_BAD_FILE, path, "%s: %s", what,
                     code ? reason : "OpenSSL gives no reason");
}

weir_status tls_open(const char *cert, const char *key, SSL_CTX **out, weir_error *err) {
    *out = NULL;
    SSL_CTX *tls = SSL_CTX_new(TLS_server_method());
    if (!tls)
        return weir_fail(err, WEIR_NO_MEMORY, cert, "no memory for TLS");
    SSL_CTX_set_min_proto_version(tls, TLS1_2_VERSION);
    SSL_CTX_set_options(tls, SSL_OP_NO_RENEGOTIATION | SSL_OP_NO_COMPRESSION |
                                 SSL_OP_CIPHER_SERVER_PREFERENCE);
    SSL_CTX_set_mode(tls, SSL_MODE_RELEASE_BUFFERS); /* idle connections hold no buffers */
    if (SSL_CTX_use_certificate_chain_file(tls, cert) != 1)
        return fail(err, cert, tls, "is no usable certificate chain (PEM)");
    if (SSL_CTX_use_PrivateKey_file(tls, key, SSL_FILETYPE_PEM) != 1)
        return fail(err, key, tls, "is no usable private key (PEM) of that certificate");
    if (SSL_CTX_check_private_key(tls) != 1)
        return fail(err, key, tls, "does not belong to the certificate");
    *out = tls;
    return WEIR_OK;
}

struct bufferevent *tls_accept(struct http *h, evutil_socket_t fd) {
    SSL *ssl = SSL_new(h->tls);
    if (!ssl)
        return NULL;
    struct bufferevent *bev =
        bufferevent_openssl_socket_new(h->base, fd, ssl, BUFFEREVENT_SSL_ACCEPTING,
                                       BEV_OPT_CLOSE_ON_FREE | BEV_OPT_DEFER_CALLBACKS);
    if (!bev) {
        SSL_free(ssl);
        return NULL;
    }
    bufferevent_openssl_set_allow_dirty_shutdown(bev, 1);
    return bev;
}
