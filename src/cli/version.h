/* version.h: which weir this is, for help and man pages. */
#ifndef WEIR_CLI_VERSION_H
#define WEIR_CLI_VERSION_H

#include "base/version.h"

#define WEIR_DATE "November 29, 2026" /* of the man pages */

#endif
