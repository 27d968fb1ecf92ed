-- Each new job asks who has the folder that it is to be published in.

CREATE INDEX job_by_target ON job (target);
