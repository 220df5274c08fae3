/* version.h - which snug this is; written into every result document and checkpoint. */
#ifndef BASE_VERSION_H
#define BASE_VERSION_H

#define SNUG_VERSION "0.1.0"
const char *snug_commit(void); /* git commit of the build, or "unknown" */

#endif
