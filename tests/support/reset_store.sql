-- Restores the rows of a new store in less time than to create its tables again. Added or changed tables are detected;
-- triggers, functions, constraints and other schemas are not: a test that creates them needs an empty database.

CREATE SCHEMA fixture;

CREATE FUNCTION fixture.tables_digest() RETURNS text LANGUAGE sql AS $$
  SELECT md5(string_agg(format('%s %s %s %s', relname, relkind, attname, atttypid), ',' ORDER BY relname, attnum))
  FROM pg_class LEFT JOIN pg_attribute ON attrelid = pg_class.oid
  WHERE relnamespace = 'public'::regnamespace
$$;

CREATE TABLE fixture.digest AS SELECT fixture.tables_digest() AS expected;

DO $$
DECLARE
  name text;
  has_rows boolean;
BEGIN
  FOR name IN SELECT relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP
    EXECUTE format('SELECT EXISTS (SELECT FROM public.%I)', name) INTO has_rows;
    IF has_rows THEN
      EXECUTE format('CREATE TABLE fixture.%I AS TABLE public.%1$I', name);
    END IF;
  END LOOP;
END $$;

CREATE FUNCTION fixture.reset() RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  tab record;
BEGIN
  IF fixture.tables_digest() IS DISTINCT FROM (SELECT expected FROM fixture.digest) THEN
    RETURN false;
  END IF;
  FOR tab IN SELECT oid, relname FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'r' LOOP
    IF pg_relation_size(tab.oid) > 1000000 THEN
      EXECUTE format('TRUNCATE public.%I', tab.relname);
    ELSE
      EXECUTE format('DELETE FROM public.%I', tab.relname);
    END IF;
    IF to_regclass(format('fixture.%I', tab.relname)) IS NOT NULL THEN
      EXECUTE format('INSERT INTO public.%I SELECT * FROM fixture.%1$I', tab.relname);
    END IF;
  END LOOP;
  PERFORM setval(oid, 1, false) FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind = 'S';
  RETURN true;
END $$;
