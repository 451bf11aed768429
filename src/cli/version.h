/* version.h: which weir this is. meson.build checks that the version is the project's. */
#ifndef WEIR_CLI_VERSION_H
#define WEIR_CLI_VERSION_H

#define WEIR_VERSION "0.1.0"
#define WEIR_DATE    "November 29, 2026" /* of the man pages */

#endif
