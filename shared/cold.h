/* Given to the C compiler before all else (see setup.py): what mypyc's code calls only when something goes wrong.
 * Branches that lead there are taken for unlikely, and their code is kept apart from what runs. */
#include <Python.h>

#define LAYA_COLD __attribute__((cold))

LAYA_COLD void CPy_AddTraceback(const char *filename, const char *funcname, int line, PyObject *globals);
LAYA_COLD void CPy_TypeError(const char *expected, PyObject *value);
LAYA_COLD void CPy_TypeErrorTraceback(const char *filename, const char *funcname, int line, PyObject *globals,
                                      const char *expected, PyObject *value);
LAYA_COLD void CPy_AttributeError(const char *filename, const char *funcname, const char *classname,
                                  const char *attrname, int line, PyObject *globals);
LAYA_COLD void CPyError_OutOfMemory(void);
LAYA_COLD __attribute__((unused)) static void CPy_DecRef(PyObject *p);
LAYA_COLD __attribute__((unused)) static void CPy_XDecRef(void *p);
