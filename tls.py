import sys,os,subprocess,time
sys.path.insert(0,"/work/main/tests")
from servers import Postgres
from pathlib import Path
pg=Postgres()
try:
    w=Path("/tmp/rwt/tls"); subprocess.run(["rm","-rf",w]); w.mkdir()
    subprocess.run("openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout k.pem -out c.pem".split(),cwd=w,capture_output=True,check=True)
    for n,d in (("k.pem","server.key"),("c.pem","server.crt")):
        p=pg.data/d; p.write_bytes((w/n).read_bytes()); p.chmod(0o600)
        if pg._user: os.chown(p,pg._user.pw_uid,pg._user.pw_gid)
    pg.sql("ALTER SYSTEM SET ssl=on"); pg.sql("SELECT pg_reload_conf()"); time.sleep(1); print("ssl",pg.sql("SHOW ssl"))
    pg.create_database("t")
    for q in ("?sslmode=require",f"?sslmode=verify-full&sslrootcert={w}/c.pem","?sslmode=verify-full&sslrootcert=/nope.pem"):
        for host in ("localhost","127.0.0.1"):
            r=subprocess.run(["/work/main/.venv/bin/runwright","doctor","--store",f"postgresql://postgres@{host}:{pg.port}/t{q}"],capture_output=True,text=True,cwd=w); print(host,q,r.returncode,r.stderr[:260])
finally: pg.stop()
