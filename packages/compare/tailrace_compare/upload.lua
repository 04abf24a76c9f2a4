-- A POST of FORM_BYTES (served/files.py), for wrk -s.
wrk.method = "POST"
wrk.headers["Content-Type"] = "application/x-bytes"
wrk.body = string.rep("x", 100000)
